"""The optimizer's step in one pass over memory, without megatron-core's copies and without waiting for the device.

megatron-core copies every gradient to float32, lets torch's AdamW update float32 weights, and copies those back to 16 bits;
before, the host waits for the gradients' norm to compute the clipping factor. Here the norm, the factor and the update stay on
the device and the kernel reads and writes each number once: 28 bytes per parameter instead of 40, and no float32 copy of the
gradients, which is 4 bytes per parameter of memory. State, groups and checkpoints are those of torch's AdamW.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.transformer.module import param_is_not_shared
from torch import Tensor

from lt_train.device import CPU
from lt_train.reading import Reading

SMALLEST_NORM = 1e-6


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one parameter's numbers are: `master` float32, `weight` and `gradient` in their buffers, all of one size and flat.

    `counted` says whether this rank counts the gradient in the norm; tied and duplicated weights count once.
    """

    master: torch.nn.Parameter
    weight: Tensor
    gradient: Tensor
    counted: bool


class OnePassAdamW(torch.optim.AdamW):
    """AdamW over `places`. `factor`, float32 of one element, multiplies the gradients; where it is not finite nothing changes.

    The host does not know that: it calls `count` when the step has been made.
    """

    def __init__(self, groups: list[dict[str, Any]], places: list[Place]):
        from lt_train.kernels.adamw import adamw

        super().__init__(groups)
        self.update = adamw
        self.places = {place.master: place for place in places}
        self.factor = torch.ones(1, device=places[0].master.device) if places else torch.ones(1)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for master in group["params"]:
                place, state = self.places[master], self.state[master]
                if not state:
                    state.update(new_state(master, torch.device(CPU)))
                self.update(
                    master, state["exp_avg"], state["exp_avg_sq"], place.gradient, place.weight, self.factor,
                    rate=group["lr"], beta1=beta1, beta2=beta2, epsilon=group["eps"], decay=group["weight_decay"],
                    count=int(state["step"]) + 1,
                )  # fmt: skip

    def count(self) -> None:
        """Say that the step was made."""
        for state in self.state.values():
            state["step"] += 1

    def squares(self) -> Tensor:
        """The sum of the squares of this rank's gradients, float32 of one element."""
        gradients = [place.gradient for place in self.places.values() if place.counted]
        if not gradients:
            return torch.zeros(1, device=self.factor.device)
        return torch.stack(torch._foreach_norm(gradients, 2, torch.float32)).square().sum().view(1)


def new_state(master: Tensor, step_device: torch.device) -> dict[str, Tensor]:
    """What torch's AdamW keeps of a parameter, before the first step."""
    return {
        "step": torch.zeros((), device=step_device),
        "exp_avg": torch.zeros_like(master),
        "exp_avg_sq": torch.zeros_like(master),
    }


def use_one_pass(optimizers: Iterable[MegatronOptimizer]) -> None:
    """Give each of megatron-core's optimizers that one torch optimizer; its copies to and from float32 then do nothing."""
    for outer in optimizers:
        places = list(_places(outer))
        outer.optimizer = OnePassAdamW(outer.optimizer.param_groups, places)
        outer._copy_model_grads_to_main_grads = _nothing
        outer._copy_main_params_to_model_params = _nothing


@torch.no_grad()
def step(optimizer: MegatronOptimizer, inner: list[MegatronOptimizer], clip_grad: float) -> Callable[[], float]:
    """Launch clipping and update; the function returned gives the norm of all gradients before clipping, and waits for no more.

    A norm that is not finite has changed nothing.
    """
    total = torch.zeros(1, device=inner[0].optimizer.factor.device)
    for outer in inner:
        squares = outer.optimizer.squares()
        torch.distributed.all_reduce(squares, group=outer.get_grad_stats_parallel_group())
        total += squares
    norm = total.sqrt()
    reading = Reading(norm)
    factor = (clip_grad / (norm + SMALLEST_NORM)).clamp(max=1) if clip_grad else torch.ones_like(norm)
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


def _places(outer: MegatronOptimizer) -> Iterator[Place]:
    if isinstance(outer, DistributedOptimizer):
        for models, masters in (
            (outer.model_float16_groups, outer.shard_fp32_from_float16_groups),
            (outer.model_fp32_groups, outer.shard_fp32_groups),
        ):
            for model, master in _pairs(models, masters):
                ranges = outer._get_model_param_range_map(model)
                own, world = ranges["param"], ranges["gbuf_world_in_bucket"]
                buffer, _, bucket = outer.model_param_gbuf_map[model]
                weights = outer.buffers[buffer].buckets[bucket].param_data.view(-1)[world.start : world.end]
                yield Place(master, weights, model.main_grad.view(-1)[own.start : own.end], _is_counted(model))
    else:
        for model, master in _pairs(outer.float16_groups, outer.fp32_from_float16_groups):
            yield Place(master, model.data.view(-1), model.main_grad.view(-1), _is_counted(model))
        for model, master in _pairs(outer.fp32_from_fp32_groups, outer.fp32_from_fp32_groups):
            yield Place(master, model.data.view(-1), model.main_grad.view(-1), _is_counted(model))


def _pairs(models: list[list[Any]], masters: list[list[Any]]) -> Iterator[tuple[Any, Any]]:
    for of_models, of_masters in zip(models, masters, strict=True):
        yield from zip(of_models, of_masters, strict=True)


def _is_counted(model: torch.nn.Parameter) -> bool:
    return bool(param_is_not_shared(model) and tensor_parallel.param_is_not_tensor_parallel_duplicate(model))


def _nothing() -> None:
    pass
