"""What every contender trains on, and how its steps are timed.

All get the same architecture, the same number of made-up tokens in a step, and the same micro batch. A step's time is that
between two events on the GPU's own clock, so a contender that lets the host run ahead is not made to wait for it.
"""

import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, Self

import torch

from lt_shared.models.architecture import Architecture
from lt_shared.models.presets import preset


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model, the tokens of one sample, and the samples of a step: each GPU has `samples`, `micro_batch` of them at a time.

    `layers` None is the model's own number.
    """

    model: str
    layers: int | None
    sequence_length: int
    samples: int
    micro_batch: int


SHAPES = {
    "llama3.2-1b": Shape("llama3.2-1b", None, 8192, 4, 4),
    "llama3-8b-width": Shape("llama3-8b", 8, 8192, 4, 4),
    "llama3-8b-width-4096": Shape("llama3-8b", 8, 4096, 8, 8),
    "llama3-8b-width-16384": Shape("llama3.1-8b", 8, 16384, 2, 1),
    "llama3.1-8b": Shape("llama3.1-8b", None, 8192, 1, 1),
    # Of four GPUs: tensor parallelism at this width, and all of a model of small experts with expert parallelism.
    "llama3-70b-width": Shape("llama3-70b", 4, 8192, 1, 1),
    "qwen3-30b-a3b": Shape("qwen3-30b-a3b", None, 4096, 4, 4),
    "tiny": Shape("tiny", None, 128, 4, 2),
}


@dataclasses.dataclass(frozen=True)
class Workload:
    """One measurement. `precision` is bf16 or fp8; `settings` are the contender's own."""

    shape: Shape
    precision: str
    gpus: int
    device: str
    warmup_steps: int
    steps: int
    settings: dict[str, Any]

    @property
    def architecture(self) -> Architecture:
        architecture = preset(self.shape.model)
        return dataclasses.replace(architecture, num_layers=self.shape.layers or architecture.num_layers)

    @property
    def micro_batches(self) -> int:
        return self.shape.samples // self.shape.micro_batch

    @property
    def tokens_per_step(self) -> int:
        """Of one GPU."""
        return self.shape.samples * self.shape.sequence_length

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        record = json.loads(text)
        return cls(**{**record, "shape": Shape(**record["shape"])})

    def batches(self, seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Micro batches of tokens and of labels [b, s] in host memory, for ever; in the steps of a run none comes again.

        Batches that come again are learnt in ten steps, and a GPU at the limit of its power is faster with gradients near zero.
        """
        generator = torch.Generator().manual_seed(seed)
        count = (self.warmup_steps + self.steps) * self.micro_batches
        size = (count, self.shape.micro_batch, self.shape.sequence_length + 1)
        tokens = torch.randint(self.architecture.vocab_size, size, generator=generator)
        pairs = [(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()) for batch in tokens]
        if self.device == "cuda":
            pairs = [(inputs.pin_memory(), labels.pin_memory()) for inputs, labels in pairs]
        return itertools.cycle(pairs)


@dataclasses.dataclass
class Result:
    """What a contender reports. Seconds are of the measured steps; `losses` the mean loss of each step, warm-up included."""

    parameters: int
    tokens_per_step: int
    step_seconds: list[float]
    memory_bytes: int
    losses: list[float]
    settings: str
    versions: dict[str, str]

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.step_seconds)


class StepClock:
    """Call `mark` at the start and at the end of every step; the first `warmup_steps` are not measured."""

    def __init__(self, work: Workload):
        self.work = work
        self._marks: list[Any] = []
        if work.device == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def mark(self) -> None:
        if self.work.device == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()  # type: ignore[no-untyped-call]
            self._marks.append(event)
            if len(self._marks) <= self.work.warmup_steps + 1:
                torch.cuda.synchronize()
        else:
            self._marks.append(time.perf_counter())
        say(f"step {len(self._marks) - 1}")

    def seconds(self) -> list[float]:
        """Of the measured steps."""
        if self.work.device == "cuda":
            torch.cuda.synchronize()
            pairs = itertools.pairwise(self._marks)
            return [first.elapsed_time(second) / 1e3 for first, second in pairs][self.work.warmup_steps :]
        return [second - first for first, second in itertools.pairwise(self._marks)][self.work.warmup_steps :]


def peak_memory(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def say(text: str) -> None:
    """Progress, for the log of a contender."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
