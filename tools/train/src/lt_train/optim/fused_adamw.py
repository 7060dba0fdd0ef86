"""Fused AdamW on split fp32 master weights, without megatron-core's copies and without waiting for the device.

megatron-core's host waits for the gradients' norm to compute the clipping factor. Then megatron-core copies every gradient to
float32, lets torch's AdamW update float32 weights, and copies the weights back to 16 bits. Here the norm, the factor and the
update stay on the device. The kernel reads and writes each number once: 26 bytes per parameter instead of 40. Neither gradients
nor weights have a float32 copy (`split_master_weights`), which saves 6 bytes of memory per parameter. Parameter groups and
checkpoints are the same as with torch's AdamW.

FSDP's shards are float32 and have separate gradients in each step. The kernel reads and writes 28 bytes per parameter instead of
40 with a clipping pass, and the host does not wait.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from megatron.core import tensor_parallel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, MegatronOptimizer
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

from lt_train.kernels import split_master_weights
from lt_train.megatron import distrib_optimizer, optimizer_optimizer
from lt_train.parallel.fsdp import FullySharded, ShardOptimizer
from lt_train.parallel.shard_collectives import UpdatedPart
from lt_train.process.device import CPU
from lt_train.process.reading import Reading

SMALLEST_NORM = 1e-6
# megatron-core's name for the masters in its optimizer's state.
FP32_WEIGHTS = "fp32_from_fp16_params"


@dataclasses.dataclass(frozen=True)
class ParameterBuffers:
    """The flat memory of a parameter: `weight` and `gradient` are views of megatron-core's buffers.

    A bfloat16 weight holds the high bits of the float32 `master`, and `low_bits`, int16, the remaining bits. The master is then a
    tensor without memory, which only identifies the parameter for megatron-core and torch. `counted` says whether this rank
    counts the gradient in the norm; tied and duplicated weights count once. If all-gathers overlap the next forward pass,
    `bucket` is megatron-core's group of weights that are gathered together.
    """

    master: torch.nn.Parameter
    weight: Tensor
    low_bits: Tensor | None
    gradient: Tensor
    counted: bool
    bucket: Any
    rounded: None = None


@dataclasses.dataclass(frozen=True)
class ShardBuffers:
    """The memory of an FSDP shard, which is its own `master`. `gradient` comes from the last backward pass, if any.

    `rounded` is the bfloat16 copy that other ranks read (`lt_train.parallel.shard_gathering`), if they do.
    """

    master: torch.nn.Parameter
    counted: bool
    rounded: Tensor | None = None
    bucket: Any = None
    low_bits: None = None

    @property
    def weight(self) -> Tensor:
        return self.master.data.view(-1)

    @property
    def gradient(self) -> Tensor | None:
        gradient: Tensor | None = getattr(self.master, "main_grad", None)
        return None if gradient is None else gradient.view(-1)


Buffers: TypeAlias = ParameterBuffers | ShardBuffers


class FusedAdamW(torch.optim.AdamW):
    """AdamW on `buffers`. `factor`, a float32 scalar, multiplies the gradients; if it is not finite, nothing changes.

    The host does not know the factor, so the caller calls `count` after a step that has changed the weights. The new weights of a
    bucket in `buckets` are sent to the other ranks at once, while the next bucket is updated.
    """

    def __init__(self, groups: list[dict[str, Any]], buffers: Sequence[Buffers], buckets: list[Any]):
        from lt_train.kernels.adamw import adamw
        from lt_train.kernels.l2_norm import sum_of_squares

        super().__init__(groups)
        self.update = adamw
        self.sum_of_squares = sum_of_squares
        self.parts = [(bucket, [one for one in buffers if one.bucket is bucket]) for bucket in buckets or [None]]
        assert sum(len(part) for _, part in self.parts) == len(buffers)
        self.buffers = {parameter.master: parameter for parameter in buffers}
        self.factor = torch.ones(1, device=buffers[0].weight.device) if buffers else torch.ones(1)
        self._loading: dict[torch.nn.Parameter, split_master_weights.Loading] = {}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        groups = {master: group for group in self.param_groups for master in group["params"]}
        for bucket, buffers in self.parts:
            for parameter in buffers:
                self._update(parameter, groups[parameter.master])
            if bucket is not None:
                bucket.start_param_sync()

    def _update(self, parameter: Buffers, group: dict[str, Any]) -> None:
        gradient = parameter.gradient
        if gradient is None:
            return
        state = self.state[parameter.master]
        if not state:
            state.update(new_state(parameter.master, torch.device(CPU)))
        beta1, beta2 = group["betas"]
        self.update(
            parameter.weight, parameter.low_bits, state["exp_avg"], state["exp_avg_sq"], gradient, self.factor,
            rate=group["lr"], beta1=beta1, beta2=beta2, epsilon=group["eps"], decay=group["weight_decay"],
            count=int(state["step"]) + 1, rounded=parameter.rounded,
        )  # fmt: skip

    def count(self) -> None:
        """Count a step that has changed the weights."""
        for state in self.state.values():
            state["step"] += 1

    @contextlib.contextmanager
    def float32_masters(self, loading: bool, joined: split_master_weights.Joined) -> Iterator[None]:
        """Within the context, masters are float32 tensors in host memory, made by `joined`.

        With `loading`, they are empty tensors to load into; call `take` afterwards.
        """
        split = [
            (master, parameter.weight, parameter.low_bits)
            for master, parameter in self.buffers.items()
            if parameter.low_bits is not None
        ]
        try:
            for master, weight, low_bits in split:
                if loading:
                    self._loading[master] = split_master_weights.Loading(weight, low_bits)
                    master.data = self._loading[master].whole.view(master.shape)
                else:
                    master.data = joined(weight, low_bits).view(master.shape)
            yield
        finally:
            for master, weight, _ in split:
                master.data = _placeholder(master.shape, weight.device)

    def take(self, loaded: Iterable[tuple[torch.nn.Parameter, Tensor]] = ()) -> None:
        """Split the loaded masters into weights and low bits: `loaded`, and the tensors that `float32_masters` has lent."""
        wholes = {master: loading.whole for master, loading in self._loading.items()} | dict(loaded)
        for master, whole in wholes.items():
            parameter = self.buffers[master]
            assert isinstance(parameter, ParameterBuffers)
            assert parameter.low_bits is not None
            loading = self._loading.get(master) or split_master_weights.Loading(parameter.weight, parameter.low_bits)
            loading.take(whole)
        self._loading.clear()

    def take_weights(self) -> None:
        """Make the model's weights, which have been set, the masters: clear the low bits."""
        for parameter in self.buffers.values():
            if parameter.low_bits is not None:
                parameter.low_bits.zero_()

    def squares(self) -> Tensor:
        """Return the sum of the squares of this rank's gradients, a float32 scalar."""
        gradients = [parameter.gradient for parameter in self.buffers.values() if parameter.counted]
        return self.sum_of_squares([gradient for gradient in gradients if gradient is not None], self.factor.device)


def new_state(master: Tensor, step_device: torch.device) -> dict[str, Tensor]:
    """Return the state that torch's AdamW has for a parameter before the first step."""
    return {
        "step": torch.zeros((), device=step_device),
        "exp_avg": torch.zeros(master.shape, dtype=torch.float32, device=master.device),
        "exp_avg_sq": torch.zeros(master.shape, dtype=torch.float32, device=master.device),
    }


def use_fused_adamw(optimizers: Iterable[MegatronOptimizer]) -> None:
    """Let FusedAdamW update the parameters in megatron-core's `optimizers`. Their copies to and from float32 then do nothing."""
    for outer in optimizers:
        if isinstance(outer, ShardOptimizer):
            groups = outer.optimizer.param_groups
            shards = [shard for group in groups for shard in group["params"]]
            parts = outer.chunk.parts(shards)
            outer.update_by(FusedAdamW(groups, _shard_buffers(outer.chunk, shards, parts), parts))
            continue
        buffers = list(_parameter_buffers(outer))
        inner = FusedAdamW(outer.optimizer.param_groups, buffers, _buckets(outer))
        if isinstance(outer, Float16OptimizerWithFloat16Params):
            save, load = partial(_state, outer), partial(_load, outer)
            optimizer_optimizer.update_by(outer, inner, inner.take_weights, save, load)
        else:
            distrib_optimizer.update_by(outer, inner, inner.take_weights)


def _state(outer: Float16OptimizerWithFloat16Params, is_loading: bool) -> dict[str, Any]:
    """Return megatron-core's state dict with the current master weights."""
    state: dict[str, Any] = Float16OptimizerWithFloat16Params.state_dict(outer, is_loading)
    state[FP32_WEIGHTS] = [[master.detach() for master in group] for group in state[FP32_WEIGHTS]]
    return state


def _load(outer: Float16OptimizerWithFloat16Params, state: dict[str, Any]) -> None:
    """Load a state dict as megatron-core does, but split the loaded masters: their placeholders have no memory to copy to."""
    loaded = list(_pairs(outer.fp32_from_float16_groups, state[FP32_WEIGHTS]))
    Float16OptimizerWithFloat16Params.load_state_dict(outer, state | {FP32_WEIGHTS: []})
    outer.optimizer.take(loaded)


@torch.no_grad()
def step(optimizer: MegatronOptimizer, inner: list[MegatronOptimizer], clip_grad: float) -> Callable[[], float]:
    """Launch clipping and update. Return a function that waits for the global gradient norm before clipping, and returns it.

    If the norm is not finite, no weight changes.
    """
    total = torch.zeros(1, device=inner[0].optimizer.factor.device)
    for outer in inner:
        squares = outer.optimizer.squares()
        torch.distributed.all_reduce(squares, group=outer.get_grad_stats_parallel_group())
        total += squares
    norm = total.sqrt()
    # The norm is copied to the host beside the update, which the host launches without knowing the norm.
    reading = Reading(norm)
    factor = (clip_grad / (norm + SMALLEST_NORM)).clamp(max=1) if clip_grad else torch.ones_like(norm)
    # The kernel changes nothing if the factor is NaN: the device decides whether the step is made.
    factor = torch.where(norm.isfinite(), factor, torch.nan)
    for outer in inner:
        outer.optimizer.factor = factor
    optimizer.step_with_ready_grads()

    def outcome() -> float:
        (read,) = reading.values()
        if math.isfinite(read):
            for outer in inner:
                outer.optimizer.count()
        return float(read)

    return outcome


def _buckets(outer: MegatronOptimizer) -> list[Any]:
    """Return the buckets that are gathered during the next forward pass, in the order of the forward pass.

    FusedAdamW starts the all-gathers. megatron-core would start one when the forward pass reaches the module before, which is too
    late for large weights behind small ones.
    """
    if not _gathers_later(outer):
        return []
    # A chunk also has the buckets of the experts' optimizer, so select the buckets of `outer`.
    bucket_ids = {id(bucket) for buffer in outer.buffers for bucket in buffer.buckets}
    groups = []
    for chunk in outer.model_chunks:
        chunk.overlap_param_gather_with_optimizer_step = True
        groups += reversed(chunk.bucket_groups + chunk.expert_parallel_bucket_groups)
    return [group for group in groups if id(group.buckets[0]) in bucket_ids]


def _gathers_later(outer: MegatronOptimizer) -> bool:
    """Return whether weights are gathered during the next forward pass.

    Not on a CPU: gloo corrupts the memory of the process if several all-gathers are under way (torch 2.13).
    """
    overlaps = isinstance(outer, DistributedOptimizer) and outer.ddp_config.overlap_param_gather
    return overlaps and all(buffer.param_data.is_cuda for buffer in outer.buffers)


def _parameter_buffers(outer: MegatronOptimizer) -> Iterator[ParameterBuffers]:
    if isinstance(outer, DistributedOptimizer):
        buckets: dict[torch.nn.Parameter, Any] = {}
        if _gathers_later(outer):
            for chunk in outer.model_chunks:
                buckets |= chunk.param_to_bucket_group
        for models, masters in (
            (outer.model_float16_groups, outer.shard_fp32_from_float16_groups),
            (outer.model_fp32_groups, outer.shard_fp32_groups),
        ):
            for model, master in _pairs(models, masters):
                ranges = outer._get_model_param_range_map(model)
                local, world = ranges["param"], ranges["gbuf_world_in_bucket"]
                buffer, _, bucket = outer.model_param_gbuf_map[model]
                weight = outer.buffers[buffer].buckets[bucket].param_data.view(-1)[world.start : world.end]
                gradient = model.main_grad.view(-1)[local.start : local.end]
                yield _buffers_of(model, master, weight, gradient, buckets.get(model))
    else:
        for models, masters in (
            (outer.float16_groups, outer.fp32_from_float16_groups),
            (outer.fp32_from_fp32_groups, outer.fp32_from_fp32_groups),
        ):
            for model, master in _pairs(models, masters):
                yield _buffers_of(model, master, model.data.view(-1), model.main_grad.view(-1), None)


def _shard_buffers(chunk: FullySharded, shards: list[torch.nn.Parameter], parts: list[UpdatedPart]) -> list[ShardBuffers]:
    part_of = {shard: part for part in parts for shard in part.shards}
    return [ShardBuffers(shard, _is_counted(shard), chunk.rounded(shard), part_of.get(shard)) for shard in shards]


def _buffers_of(
    model: torch.nn.Parameter, master: torch.nn.Parameter, weight: Tensor, gradient: Tensor, bucket: Any
) -> ParameterBuffers:
    low_bits = None
    if weight.dtype == torch.bfloat16:
        low_bits = torch.zeros_like(weight, dtype=torch.int16)
        master.data = _placeholder(master.shape, weight.device)
    return ParameterBuffers(master, weight, low_bits, gradient, _is_counted(model), bucket)


def _is_counted(model: torch.nn.Parameter) -> bool:
    return bool(param_is_not_shared(model) and tensor_parallel.param_is_not_tensor_parallel_duplicate(model))


def _placeholder(shape: torch.Size, device: torch.device) -> Tensor:
    """Return a float32 tensor of `shape` that takes the memory of a single number."""
    return torch.zeros(1, device=device).expand(shape)


def _pairs(model_groups: list[list[Any]], master_groups: list[list[Any]]) -> Iterator[tuple[Any, Any]]:
    for models, masters in zip(model_groups, master_groups, strict=True):
        yield from zip(models, masters, strict=True)
