"""`megatron.core.optimizer.distrib_optimizer`: fused AdamW, checkpoints of a rank's own shards, torch's optimizers.

- Fused AdamW reads gradients and writes weights in the model's buffers, so that megatron-core's copies to and from float32 are
  not needed: 26 bytes of memory traffic per parameter instead of 40.
- To save, every rank of megatron-core gathers the data-parallel ranks' optimizer state in host memory, and if a bucket has
  padding, stores other weights' state under a weight's name. Instead, each rank saves and loads its local slices.
- The module's flags say that TransformerEngine and apex are absent, as `lt_train.megatron.optimizer` says.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from megatron.core.optimizer import distrib_optimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream

UPSTREAM = Upstream(
    "megatron.core.optimizer.distrib_optimizer",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    signatures={
        "DistributedOptimizer._copy_model_grads_to_main_grads": "(self)",
        "DistributedOptimizer._copy_main_params_to_model_params": "(self)",
        "DistributedOptimizer._copy_model_params_to_main_params": "(self, state_dict=None)",
        "DistributedOptimizer.sharded_param_state_fully_reshardable": (
            "(self, model_sharded_state_dict, is_loading=False, metadata=None)"
        ),
        "DistributedOptimizer.load_parameter_state_from_fully_reshardable": "(self, state_dict)",
    },
    values=("HAVE_APEX_OR_TE", "USING_TE_OPTIMIZER", "USING_APEX_OPTIMIZER", "DistributedOptimizer.optimizer"),
)


def use_torch_optimizers() -> None:
    """Let `DistributedOptimizer` look for step counters where torch's optimizers have them."""
    distrib_optimizer.HAVE_APEX_OR_TE = False
    distrib_optimizer.USING_TE_OPTIMIZER = False
    distrib_optimizer.USING_APEX_OPTIMIZER = False


def update_by(outer: DistributedOptimizer, inner: Any, take_weights: Callable[[], None]) -> None:
    """Let `inner` update the weights of `outer`; `take_weights` is called if the model's weights were set."""
    outer.optimizer = inner
    outer._copy_model_grads_to_main_grads = partial(_copy_nothing, "_copy_model_grads_to_main_grads")
    outer._copy_main_params_to_model_params = partial(_copy_nothing, "_copy_main_params_to_model_params")
    outer._copy_model_params_to_main_params = partial(_take_weights, take_weights)


def _copy_nothing(name: str, *unknown: Any, **unknown_named: Any) -> None:
    UPSTREAM.refuse_unknown(f"DistributedOptimizer.{name}", unknown, unknown_named)


def _take_weights(take_weights: Callable[[], None], state_dict: object = None, *unknown: Any, **unknown_named: Any) -> None:
    # Master weights of a `state_dict` would be passed over. lt-train never gives megatron-core one to reload.
    named = {"state_dict": state_dict} | unknown_named
    UPSTREAM.refuse_unknown("DistributedOptimizer._copy_model_params_to_main_params", unknown, named)
    take_weights()


def save_local_shards(optimizer: DistributedOptimizer, sharded_state: Callable[[Any], Any]) -> None:
    """Save the result of `sharded_state` for a model's sharded state; loading has already filled the rank's memory."""
    optimizer.sharded_param_state_fully_reshardable = partial(_sharded_state, sharded_state)
    optimizer.load_parameter_state_from_fully_reshardable = _load_nothing


def _sharded_state(
    sharded_state: Callable[[Any], Any],
    model_sharded_state_dict: Any,
    is_loading: bool = False,
    metadata: Any = None,
    *unknown: Any,
    **unknown_named: Any,
) -> Any:
    UPSTREAM.refuse_unknown("DistributedOptimizer.sharded_param_state_fully_reshardable", unknown, unknown_named)
    return sharded_state(model_sharded_state_dict)


def _load_nothing(state_dict: Any, *unknown: Any, **unknown_named: Any) -> None:
    UPSTREAM.refuse_unknown("DistributedOptimizer.load_parameter_state_from_fully_reshardable", unknown, unknown_named)
