"""Keep an exponential moving average of the weights, for evaluation and for a converted model.

After each optimizer step, `average = decay * average + (1 - decay) * weights`, as in NeMo's EMA callback and torch's
AveragedModel. The average is float32 and belongs to the optimizer's state of a weight, beside the moments: each rank has the part
whose weights it updates, a checkpoint has it as `optimizer.state.ema.NAME`, and another parallel layout reads it like a moment.

An evaluation exchanges the master weights and the average in place, so it needs no third copy. The exchange back restores every
bit: float32 numbers are moved, and the 16-bit weights are rounded from the same masters again.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from megatron.core.optimizer.optimizer import MegatronOptimizer
from torch import Tensor

from lt_train.kernels import split_master_weights
from lt_train.kernels.split_master_weights import SLICE_ELEMENTS
from lt_train.optim.fused_adamw import FusedAdamW
from lt_train.optim.optimizer import inner_optimizers, torch_optimizers
from lt_train.parallel.ddp import Chunk, gather_weights, gathered_weights
from lt_train.parallel.fsdp import FullySharded

# The key of the average in the state of a weight.
AVERAGE = "ema"


class WeightAverage:
    """The average of the weights that `optimizer` updates on this rank. `chunks` are the model's parts on this rank."""

    def __init__(self, decay: float, optimizer: MegatronOptimizer, chunks: list[Chunk]):
        self.decay = decay
        self.optimizer = optimizer
        self.chunks = chunks

    @torch.no_grad()
    def begin(self) -> None:
        """Begin the averages that do not exist yet with the present weights. The optimizer must have its state."""
        for inner, master, state in self._weights():
            if AVERAGE not in state:
                state[AVERAGE] = torch.empty(master.shape, dtype=torch.float32, device=_weight(inner, master).device)
                for average, weights, _ in _slices(inner, master, state):
                    average.copy_(weights)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights of the last step."""
        for inner, master, state in self._weights():
            for average, weights, _ in _slices(inner, master, state):
                average.lerp_(weights, 1 - self.decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within the context, the model computes with the averages. All ranks enter it together."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        """Exchange the weights and their averages."""
        # Weights that --overlap-param-gather still gathers must not change under it.
        with gathered_weights(self.chunks):
            for inner, master, state in self._weights():
                for average, weights, write in _slices(inner, master, state):
                    previous = weights.clone()
                    write(average)
                    average.copy_(previous)
            for outer in inner_optimizers(self.optimizer):
                if outer.optimizer is not None and hasattr(outer, "_copy_main_params_to_model_params"):
                    outer._copy_main_params_to_model_params()
            gather_weights(self.chunks)
            for chunk in self.chunks:
                if isinstance(chunk, FullySharded):
                    chunk.forget_gathered()

    def _weights(self) -> Iterator[tuple[torch.optim.Optimizer, torch.nn.Parameter, dict[str, Tensor]]]:
        """Yield each torch optimizer with each of its master weights and the weight's state."""
        for inner in torch_optimizers(self.optimizer):
            for group in inner.param_groups:
                for master in group["params"]:
                    yield inner, master, inner.state[master]


def _weight(inner: torch.optim.Optimizer, master: torch.nn.Parameter) -> Tensor:
    """Return the tensor that holds a weight, or its high bits if `master` has no memory."""
    weight: Tensor = inner.buffers[master].weight if isinstance(inner, FusedAdamW) else master.data
    return weight


def _slices(
    inner: torch.optim.Optimizer, master: torch.nn.Parameter, state: dict[str, Any]
) -> Iterator[tuple[Tensor, Tensor, Callable[[Tensor], None]]]:
    """Yield slices of the average, of the float32 weights, and a function that sets the weights of the slice.

    Slices bound the temporary memory. Weights that are split in high and low bits are joined in such memory.
    """
    weight = _weight(inner, master).view(-1)
    low_bits = inner.buffers[master].low_bits if isinstance(inner, FusedAdamW) else None
    averages = state[AVERAGE].view(-1)
    for begin in range(0, len(weight), SLICE_ELEMENTS):
        part = slice(begin, begin + SLICE_ELEMENTS)
        if low_bits is None:
            yield averages[part], weight[part], partial(_set, weight[part])
        else:
            upper, lower = weight[part], low_bits[part]
            joined = torch.empty_like(averages[part])
            split_master_weights.join(upper, lower, joined)
            yield averages[part], joined, partial(_set_split, upper, lower)


def _set(weight: Tensor, values: Tensor) -> None:
    weight.copy_(values)


def _set_split(upper: Tensor, lower: Tensor, values: Tensor) -> None:
    split_master_weights.split(values, upper, lower)
