"""A rank's training state as tensors and numbers, restored bit for bit by the same rank in an equal layout.

A checkpoint stores a tensor by its place in the whole model. A copy in memory is only read by a rank with the same shards, so it
holds the tensors that the optimizer updates, unchanged. 16-bit weights are rounded from float32 masters and gathered again.
"""

import dataclasses
import random
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from torch import Tensor

from lt_train.checkpoint.training_state import TrainingState
from lt_train.metrics.unlogged import Unlogged
from lt_train.optim.fused_adamw import FusedAdamW
from lt_train.optim.optimizer import inner_optimizers, torch_optimizers
from lt_train.parallel.ddp import gather_weights, gathered_weights
from lt_train.parallel.fsdp import FullySharded
from lt_train.process import device

Numbers = dict[str, Any]


def live_tensors(state: TrainingState) -> dict[str, Tensor]:
    """Return the tensors of `state` by name. They are views: the next step changes them. Random states are copies."""
    state.create_optimizer_state()
    tensors = dict(_random_tensors())
    for number, chunk in enumerate(state.chunks):
        for name, buffer in chunk.module.named_buffers():
            tensors[f"chunk.{number}.buffer.{name}"] = buffer
        for name, parameter in chunk.named_parameters():
            if not parameter.requires_grad:
                tensors[f"chunk.{number}.frozen.{name}"] = parameter.data
    for number, inner in enumerate(torch_optimizers(state.optimizer)):
        for group_number, group in enumerate(inner.param_groups):
            for parameter_number, master in enumerate(group["params"]):
                prefix = f"optimizer.{number}.{group_number}.{parameter_number}"
                tensors |= {f"{prefix}.{name}": tensor for name, tensor in _weight_tensors(inner, master)}
    return tensors


def numbers(state: TrainingState) -> Numbers:
    """Return what `live_tensors` leaves out, as values for JSON."""
    kind, keys, *position = cast(tuple[Any, ...], np.random.get_state())
    optimizers = list(inner_optimizers(state.optimizer))
    return {
        "iteration": state.iteration,
        "consumed_samples": state.consumed_samples,
        "ordered_samples": list(state.ordered_samples),
        "unlogged": dataclasses.asdict(state.unlogged),
        "schedule": state.scheduler.num_steps,
        "python_random": random.getstate(),
        "numpy_random": [kind, keys.tolist(), *position],
        "group_steps": [[_group_step(group) for group in inner.param_groups] for inner in torch_optimizers(state.optimizer)],
        "loss_scales": [_loss_scale(inner) for inner in optimizers],
    }


@torch.no_grad()
def restore(state: TrainingState, stored: dict[str, Tensor], stored_numbers: Numbers) -> None:
    """Set `state` to the `stored` tensors and numbers. All ranks call it, because weights are gathered.

    Raises ValueError on a rank whose state has other tensors, before anything is changed on this rank.
    """
    tensors = live_tensors(state)
    if difference := describe_difference(tensors, stored):
        raise ValueError(difference)
    for name, tensor in tensors.items():
        if not name.startswith(RANDOM):
            tensor.copy_(stored[name])
    _restore_random({name: tensor for name, tensor in stored.items() if name.startswith(RANDOM)}, stored_numbers)
    state.iteration, state.consumed_samples = stored_numbers["iteration"], stored_numbers["consumed_samples"]
    state.ordered_samples = tuple(stored_numbers["ordered_samples"])
    state.unlogged = Unlogged(**stored_numbers["unlogged"])
    for inner, steps in zip(torch_optimizers(state.optimizer), stored_numbers["group_steps"], strict=True):
        for group, step in zip(inner.param_groups, steps, strict=True):
            _set_group_step(group, step)
    for outer, scale in zip(inner_optimizers(state.optimizer), stored_numbers["loss_scales"], strict=True):
        if scale:
            outer.grad_scaler.load_state_dict(scale | {"scale": torch.tensor([scale["scale"]], dtype=torch.float32)})
    state.scheduler.num_steps = 0
    state.scheduler.step(increment=stored_numbers["schedule"])
    _take_masters(state)


def describe_difference(tensors: dict[str, Tensor], stored: dict[str, Tensor]) -> str | None:
    """Return how `stored` differs from `tensors` in names, types or shapes; None if they match."""
    if unknown := sorted(tensors.keys() ^ stored.keys()):
        return f"{len(unknown)} tensor(s) are there or here only: {', '.join(unknown[:3])}"
    for name, tensor in tensors.items():
        if (tensor.dtype, tensor.shape) != (stored[name].dtype, stored[name].shape):
            return f"{name} is {stored[name].dtype} {list(stored[name].shape)}, not {tensor.dtype} {list(tensor.shape)}"
    return None


RANDOM = "random."


def _random_tensors() -> Iterator[tuple[str, Tensor]]:
    yield f"{RANDOM}torch", torch.get_rng_state()
    if torch.cuda.is_available():
        yield f"{RANDOM}{device.CUDA}", torch.cuda.get_rng_state()
    for name, tensor in get_cuda_rng_tracker().get_states().items():
        yield f"{RANDOM}tracker.{name}", tensor


def _restore_random(stored: dict[str, Tensor], stored_numbers: Numbers) -> None:
    tracker = {}
    for name, tensor in stored.items():
        # The setters keep the tensor, whose memory the next copy overwrites.
        source, copy = name.removeprefix(RANDOM), tensor.clone()
        if source == "torch":
            torch.set_rng_state(copy)
        elif source == device.CUDA:
            torch.cuda.set_rng_state(copy)
        else:
            tracker[source.removeprefix("tracker.")] = copy
    get_cuda_rng_tracker().set_states(tracker)
    version, internal, gauss = stored_numbers["python_random"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *position = stored_numbers["numpy_random"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *position))


def _weight_tensors(inner: torch.optim.Optimizer, master: torch.nn.Parameter) -> Iterator[tuple[str, Tensor]]:
    if isinstance(inner, FusedAdamW):
        buffers = inner.buffers[master]
        yield "weight", buffers.weight
        if buffers.low_bits is not None:
            yield "low_bits", buffers.low_bits
    else:
        yield "weight", master.data
    for name, value in inner.state[master].items():
        if isinstance(value, Tensor):
            yield f"state.{name}", value


def _group_step(group: dict[str, Any]) -> float | None:
    step = group.get("step")
    return None if step is None else float(step)


def _set_group_step(group: dict[str, Any], step: float | None) -> None:
    if step is not None:
        present = group.get("step")
        group["step"] = present.fill_(step) if isinstance(present, Tensor) else int(step)


def _loss_scale(outer: Any) -> dict[str, Any]:
    scaler = getattr(outer, "grad_scaler", None)
    content = scaler.state_dict() if scaler is not None else {}
    return {name: value.item() if isinstance(value, Tensor) else value for name, value in content.items()}


def _take_masters(state: TrainingState) -> None:
    """Round the model's weights from the masters, and gather them from the ranks that hold them."""
    with gathered_weights(state.chunks):
        for outer in inner_optimizers(state.optimizer):
            if outer.optimizer is not None and hasattr(outer, "_copy_main_params_to_model_params"):
                outer._copy_main_params_to_model_params()
        gather_weights(state.chunks)
        for chunk in state.chunks:
            if isinstance(chunk, FullySharded):
                chunk.forget_gathered()
