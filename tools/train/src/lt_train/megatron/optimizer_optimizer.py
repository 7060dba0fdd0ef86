"""`megatron.core.optimizer.optimizer`: fused AdamW on split master weights, and chained optimizers in one order on all ranks.

- `Float16OptimizerWithFloat16Params` copies gradients to float32 and weights back. Fused AdamW does both itself, and keeps only
  the low 16 bits of its master weights: they are joined for saving, and split after loading.
- `ChainedOptimizer` orders its parts by the rank's parameters, and each part sums gradient norms over a separate group. So the
  stages of a pipeline with grouped experts would wait for each other in different groups.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from megatron.core.optimizer.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params, MegatronOptimizer

from lt_train.megatron.upstream import MEGATRON_CORE, Upstream

UPSTREAM = Upstream(
    "megatron.core.optimizer.optimizer",
    MEGATRON_CORE,
    versions=("0.16.1", "0.19.2"),
    signatures={
        "Float16OptimizerWithFloat16Params._copy_model_grads_to_main_grads": "(self)",
        "Float16OptimizerWithFloat16Params._copy_main_params_to_model_params": "(self)",
        "Float16OptimizerWithFloat16Params._copy_model_params_to_main_params": "(self, state_dict=None)",
        "Float16OptimizerWithFloat16Params.state_dict": "(self, is_loading=False)",
        "Float16OptimizerWithFloat16Params.load_state_dict": "(self, state_dict)",
    },
    values=("Float16OptimizerWithFloat16Params.optimizer", "ChainedOptimizer.chained_optimizers"),
)


def update_by(
    outer: Float16OptimizerWithFloat16Params,
    inner: Any,
    take_weights: Callable[[], None],
    save: Callable[[bool], dict[str, Any]],
    load: Callable[[dict[str, Any]], None],
) -> None:
    """Let `inner` update the weights of `outer`. `take_weights` is called after the model's weights have been set.

    `save(is_loading)` returns the state of `outer`, and `load` takes such a state.
    """
    outer.optimizer = inner
    outer._copy_model_grads_to_main_grads = partial(_copy_nothing, "_copy_model_grads_to_main_grads")
    outer._copy_main_params_to_model_params = partial(_copy_nothing, "_copy_main_params_to_model_params")
    outer._copy_model_params_to_main_params = partial(_take_weights, take_weights)
    outer.state_dict = partial(_state_dict, save)
    outer.load_state_dict = partial(_load_state_dict, load)


def _copy_nothing(name: str, *unknown: Any, **unknown_named: Any) -> None:
    UPSTREAM.refuse_unknown(f"Float16OptimizerWithFloat16Params.{name}", unknown, unknown_named)


def _take_weights(take_weights: Callable[[], None], state_dict: object = None, *unknown: Any, **unknown_named: Any) -> None:
    # The master weights in a `state_dict` would be ignored. lt-train never passes one.
    named = {"state_dict": state_dict} | unknown_named
    UPSTREAM.refuse_unknown("Float16OptimizerWithFloat16Params._copy_model_params_to_main_params", unknown, named)
    take_weights()


def _state_dict(
    save: Callable[[bool], dict[str, Any]], is_loading: bool = False, *unknown: Any, **unknown_named: Any
) -> dict[str, Any]:
    UPSTREAM.refuse_unknown("Float16OptimizerWithFloat16Params.state_dict", unknown, unknown_named)
    return save(is_loading)


def _load_state_dict(
    load: Callable[[dict[str, Any]], None], state_dict: dict[str, Any], *unknown: Any, **unknown_named: Any
) -> None:
    UPSTREAM.refuse_unknown("Float16OptimizerWithFloat16Params.load_state_dict", unknown, unknown_named)
    load(state_dict)


def order_parts(optimizer: ChainedOptimizer, place: Callable[[MegatronOptimizer], Any]) -> None:
    """Sort the parts of `optimizer` by the key `place`."""
    optimizer.chained_optimizers = sorted(optimizer.chained_optimizers, key=place)
