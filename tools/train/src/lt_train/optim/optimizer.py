"""Build megatron-core's optimizers with the schedule of learning rate and weight decay, and make a step only if it is finite.

Norms and biases have no weight decay: megatron-core puts them in groups with `wd_mult` 0, which its schedule applies every step.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any, TypeAlias

import torch
from megatron.core.optimizer import (
    OptimizerConfig,
    ParamGroupOverride,
    ParamKey,
    get_megatron_optimizer,
    get_standard_config_overrides,
)
from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import ChainedOptimizer, MegatronOptimizer
from megatron.core.optimizer.optimizer_config import ParamWithNamePredicate
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from lt_train.config.megatron_version import release
from lt_train.config.settings.layers import TRITON
from lt_train.config.settings.optimization import Optimization
from lt_train.config.settings.precision import Precision
from lt_train.kernels import split_master_weights
from lt_train.megatron import distrib_optimizer, emerging_optimizers, optimizer_optimizer
from lt_train.megatron import optimizer as megatron_optimizer
from lt_train.optim import fused_adamw
from lt_train.optim.fused_adamw import FusedAdamW
from lt_train.parallel.ddp import Chunk
from lt_train.parallel.flat_shards import local_sharded_state
from lt_train.parallel.fsdp import FullySharded, ShardOptimizer
from lt_train.process.device import CPU

# Whether the step has changed the weights, and the gradient norm before clipping. The norm is None if the loss scale was too
# high.
Outcome: TypeAlias = tuple[bool, float | None]
# AdamW updates these parameters, whatever their shape is.
_NO_MATRICES = ("*.bias", "*embedding.*")
# The first release whose checkpoints tell groups of parameters apart by their learning rates.
GROUPS_BY_RATE_VERSION = (0, 19)
# The number of dimensions of a matrix, and of the experts' matrices on this rank.
_MATRIX_DIMENSIONS = (2, 3)


def build(
    optimization: Optimization, precision: Precision, train_samples: int, adamw: str, chunks: list[Chunk]
) -> tuple[MegatronOptimizer, OptimizerParamScheduler]:
    """Build the optimizer of this rank, and the schedule of its learning rates. The schedule counts samples.

    `adamw` is the implementation of AdamW's update (`Kernels.adamw`).
    """
    megatron_optimizer.use_torch_optimizers()
    distrib_optimizer.use_torch_optimizers()
    is_muon, is_fully_sharded = optimization.optimizer == "muon", isinstance(chunks[0], FullySharded)
    if is_muon:
        _use_muon_for_stacked_matrices()
    config = OptimizerConfig(
        optimizer=optimization.optimizer,
        lr=optimization.lr,
        min_lr=optimization.min_lr,
        weight_decay=optimization.start_weight_decay,
        adam_beta1=optimization.adam_beta1,
        adam_beta2=optimization.adam_beta2,
        adam_eps=optimization.adam_eps,
        clip_grad=optimization.clip_grad,
        # FSDP's shards are float32, so the optimizer needs no float32 copies.
        bf16=precision.bf16 and not is_fully_sharded,
        fp16=precision.fp16,
        loss_scale=precision.loss_scale,
        initial_loss_scale=precision.initial_loss_scale,
        min_loss_scale=precision.min_loss_scale,
        loss_scale_window=precision.loss_scale_window,
        hysteresis=precision.hysteresis,
        params_dtype=getattr(torch, precision.dtype),
        use_distributed_optimizer=chunks[0].ddp_config.use_distributed_optimizer,
        overlap_param_gather=chunks[0].ddp_config.overlap_param_gather,
        # Each tensor-parallel rank orthogonalizes whole matrices. Separate shards would result in another update than on one
        # rank.
        **({"muon_tp_mode": "duplicated"} if is_muon else {}),
    )
    overrides = None if is_muon else width_overrides(config, optimization.width_multiplier)
    optimizer = get_megatron_optimizer(config, chunks, config_overrides=overrides)
    if is_muon:
        _order_alike(optimizer)
    if is_fully_sharded:
        parts = [ShardOptimizer(inner.optimizer, config, inner.init_state_fn, chunks[0]) for inner in inner_optimizers(optimizer)]
        optimizer = ChainedOptimizer(parts)
    for inner in inner_optimizers(optimizer):
        if isinstance(inner, DistributedOptimizer):
            distrib_optimizer.save_local_shards(inner, partial(local_sharded_state, inner))
    if adamw == TRITON:
        fused_adamw.use_fused_adamw(inner for inner in inner_optimizers(optimizer) if inner.optimizer is not None)
    _use_fused_kernels(optimizer)
    return optimizer, _schedule(optimization, train_samples, optimizer)


def width_overrides(config: OptimizerConfig, multiplier: float) -> dict[ParamKey, ParamGroupOverride] | None:
    """Return the settings of parameter groups with muP: the matrices of layers have rates and epsilon divided by `multiplier`.

    None leaves megatron-core's groups. The group is the one of megatron-core's `get_mup_config_overrides`, from 0.19 on. 0.16 has
    no such function, and tells groups in checkpoints apart by `lr_mult`, which nothing multiplies by.
    """
    if multiplier == 1:
        return None
    rates = ParamGroupOverride(max_lr=config.lr / multiplier, min_lr=config.min_lr / multiplier, eps=config.adam_eps / multiplier)
    if release(version("megatron-core")) < GROUPS_BY_RATE_VERSION:
        rates["lr_mult"] = 1 / multiplier
    matrices = ParamWithNamePredicate("matrices of layers", _is_layer_matrix)
    return {**get_standard_config_overrides(config), ParamKey(with_name_predicate=matrices): rates}


def _is_layer_matrix(parameter: torch.nn.Parameter, name: str) -> bool:
    is_matrix = parameter.dim() > 1 and not name.endswith("bias")
    return is_matrix and "embedding" not in name and "output_layer" not in name


def _schedule(optimization: Optimization, train_samples: int, optimizer: MegatronOptimizer) -> OptimizerParamScheduler:
    return OptimizerParamScheduler(
        optimizer,
        init_lr=optimization.lr_warmup_init,
        max_lr=optimization.lr,
        min_lr=optimization.min_lr,
        lr_warmup_steps=optimization.lr_warmup_samples,
        lr_decay_steps=optimization.lr_decay_samples,
        lr_decay_style=optimization.lr_decay_style,
        start_wd=optimization.start_weight_decay,
        end_wd=optimization.end_weight_decay,
        wd_incr_steps=train_samples,
        wd_incr_style=optimization.weight_decay_style,
        use_checkpoint_opt_param_scheduler=False,
        wsd_decay_steps=optimization.wsd_decay_samples,
        lr_wsd_decay_style=optimization.wsd_decay_style,
    )


def _use_fused_kernels(optimizer: MegatronOptimizer) -> None:
    """Let torch's AdamW update all parameters on a GPU in one kernel. megatron-core leaves it at one kernel per operation."""
    for inner in torch_optimizers(optimizer):
        if isinstance(inner, torch.optim.AdamW):
            for group in inner.param_groups:
                group["fused"] = (
                    not isinstance(inner, FusedAdamW)
                    and all(parameter.is_cuda for parameter in group["params"])
                    and bool(group["params"])
                )


@torch.no_grad()
def step(optimizer: MegatronOptimizer, clip_grad: float) -> Callable[[], Outcome]:
    """Clip and apply the gradients. Return a function that returns the outcome, and waits for the device if it must.

    Gradients with an infinity or a NaN are not applied. megatron-core checks gradients only if it scales the loss (fp16), and
    would otherwise write a NaN into all weights. The norm is computed over all ranks, so that every rank decides alike.
    """
    optimizers = [inner for inner in inner_optimizers(optimizer) if inner.optimizer is not None]
    if optimizers and all(isinstance(inner.optimizer, FusedAdamW) for inner in optimizers):
        read = fused_adamw.step(optimizer, optimizers, clip_grad)
        return lambda: _outcome(read())
    outcome = _step(optimizer, clip_grad)
    return lambda: outcome


def _outcome(norm: float) -> Outcome:
    return math.isfinite(norm), norm


def _step(optimizer: MegatronOptimizer, clip_grad: float) -> Outcome:
    """Make a step with megatron-core, which needs the norm on the host before the update."""
    if optimizer.prepare_grads():
        return False, None
    norm = float(optimizer.get_grad_norm())
    if not math.isfinite(norm):
        return _outcome(norm)
    if clip_grad:
        for inner in inner_optimizers(optimizer):
            clip_grad_by_total_norm_fp32(inner.get_parameters(), clip_grad, norm)
    return bool(optimizer.step_with_ready_grads()), norm


def loss_scale(optimizer: MegatronOptimizer) -> float:
    """Return the factor of the losses in the next step, 1 without scaling.

    Without scaling, megatron-core would read a tensor that waits behind the update on the device.
    """
    return float(optimizer.get_loss_scale()) if scales_losses(optimizer) else 1.0


def scales_losses(optimizer: MegatronOptimizer) -> bool:
    """Return whether the optimizer scales losses, as with fp16."""
    return any(getattr(inner, "grad_scaler", None) is not None for inner in inner_optimizers(optimizer))


def inner_optimizers(optimizer: MegatronOptimizer) -> list[MegatronOptimizer]:
    """Return megatron-core's optimizers inside `optimizer`, each for a part of the weights."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def torch_optimizers(optimizer: MegatronOptimizer) -> list[torch.optim.Optimizer]:
    """Return the torch optimizers inside `optimizer`, which hold the state tensors."""
    return [inner.optimizer for inner in inner_optimizers(optimizer) if inner.optimizer is not None]


def create_state(optimizer: MegatronOptimizer) -> None:
    """Create the state before the first step. megatron-core neither saves nor loads an optimizer without state."""
    for outer in inner_optimizers(optimizer):
        if isinstance(outer.optimizer, torch.optim.AdamW):
            _create_adam_state(outer.optimizer)
        elif outer.optimizer is not None:
            outer.init_state_fn(outer.optimizer, outer.config)


@contextlib.contextmanager
def float32_masters(
    optimizer: MegatronOptimizer, loading: bool, joined: split_master_weights.Joined = split_master_weights.joined
) -> Iterator[None]:
    """Within the context, every float32 weight is a tensor to save or to load into. Call `take_masters` after loading.

    `joined` returns the float32 tensor of a split weight from the weight and its low bits.
    """
    with contextlib.ExitStack() as stack:
        for inner in _fused_adamws(optimizer):
            stack.enter_context(inner.float32_masters(loading, joined))
        yield


def take_masters(optimizer: MegatronOptimizer) -> None:
    """Give the optimizer the master weights that were loaded within `float32_masters`."""
    for inner in _fused_adamws(optimizer):
        inner.take()


def _fused_adamws(optimizer: MegatronOptimizer) -> Iterator[FusedAdamW]:
    return (inner for inner in torch_optimizers(optimizer) if isinstance(inner, FusedAdamW))


def _create_adam_state(optimizer: torch.optim.AdamW) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state: dict[str, Any] = optimizer.state[parameter]
            if not state:
                state.update(fused_adamw.new_state(parameter, _step_device(group, parameter)))


def _step_device(group: dict[str, Any], parameter: torch.Tensor) -> torch.device:
    """Return the device where torch's AdamW expects its step counter."""
    return parameter.device if group.get("fused") else torch.device(CPU)


def separate_steps(optimizer: MegatronOptimizer) -> None:
    """Give every parameter a separate step counter, on the device where torch's AdamW expects it.

    megatron-core restores the same tensor object for every parameter. torch's AdamW then increments it once per parameter, so the
    bias correction drifts and the losses after a resume differ without any message. megatron-core also restores the settings of
    the saved groups, even if the run was on another device.
    """
    _use_fused_kernels(optimizer)
    for inner in torch_optimizers(optimizer):
        for group in inner.param_groups:
            for parameter in group["params"]:
                state = inner.state.get(parameter, {})
                if isinstance(state.get("step"), torch.Tensor):
                    state["step"] = state["step"].clone().to(_step_device(group, parameter))


def _use_muon_for_stacked_matrices() -> None:
    """Let megatron-core, from 0.19 on, update the experts' weights with Muon and their biases with AdamW.

    megatron-core lets Muon update every parameter with two dimensions, and AdamW all other parameters. Grouped experts have their
    weights in a tensor [experts, outputs, inputs] and their biases in a tensor with two dimensions, so the optimizers would be
    swapped. Each matrix is orthogonalized as a whole, every expert's separately, the same in every layout. Muon's iteration
    multiplies the matrices of such a tensor in batched GEMMs, and holds them in float32 and in 16 bits at once.
    """
    emerging_optimizers.leave_to_adam(_NO_MATRICES, _is_no_matrix)


def _is_no_matrix(parameter: torch.nn.Parameter) -> bool:
    return getattr(parameter, "is_embedding_or_output_parameter", False) or parameter.dim() not in _MATRIX_DIMENSIONS


def _order_alike(optimizer: ChainedOptimizer) -> None:
    """Sort the parts of `optimizer` alike on every rank: Muon before AdamW, and for both the experts' parameters last.

    megatron-core orders the parts by the rank's parameters. Each part takes part in an all-reduce for the gradient norm, so
    pipeline stages with different orders would wait for each other in different groups.
    """
    optimizer_optimizer.order_parts(optimizer, _order_key)


def _order_key(part: MegatronOptimizer) -> tuple[bool, bool]:
    inner: torch.optim.Optimizer = part.optimizer
    return isinstance(inner, torch.optim.AdamW), bool(inner.param_groups[0]["is_expert_parallel"])
