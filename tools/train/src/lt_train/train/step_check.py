"""A step computed twice and compared, every --check-replay-interval steps: finds a rank whose processor computes wrong.

A rank whose GPU or CPU is defective gives wrong gradients without any error, and the reduction spreads them over all ranks. So
both passes leave the gradients unreduced: each rank compares its own two, and who differs is known before anything is shared.
Ranks that hold the same weights compare these too: the majority is right. The second pass is the one that counts, so a checked
step has the numbers of any other, and takes one forward and backward pass longer.

Where a step is deterministic (on a CPU, with --deterministic), one different bit is a difference. Elsewhere only sums are
compared, within TOLERANCE: an exponent that flipped is found, the last digits are not.
"""

import collections
import contextlib
import dataclasses
import hashlib
import itertools
import random
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.tensor_parallel import get_cuda_rng_tracker
from torch import Tensor

from lt_shared.console import ToolError
from lt_train.data.batch import Batch
from lt_train.models.chunks import unwrapped
from lt_train.ops import wgrad_accumulation
from lt_train.parallel.ddp import Chunk
from lt_train.runtime import agreement, device, process_lifetime
from lt_train.runtime.interruption import Echo

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState

Losses = list[dict[str, Tensor]]
TOLERANCE = 1e-3
# Of a digest; the int64 copies of so many elements take 64 MiB.
ELEMENTS = 2**22
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Miscomputed(ToolError):
    """This rank has computed two different results of one step, or holds other weights than the ranks that share them."""

    def __init__(self, message: str):
        super().__init__(message, "the machine is defective until shown otherwise: exclude it (lt-monitor tail-cause names it)")
        self.exit_code = process_lifetime.miscomputed_code()  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one rank knows: `problem` of its own two passes, digests of weights that it shares, and with whom."""

    rank: int
    host: str
    problem: str | None
    dense: tuple[str, str]
    expert: tuple[str, str]


class StepCheck:
    """Computes the steps twice whose number `interval` divides, none without one."""

    def __init__(
        self,
        interval: int | None,
        deterministic: bool,
        state: "TrainingState",
        where: torch.device,
        clear_gradients: Callable[[], None],
    ):
        self.interval = interval
        self.is_exact = where.type == device.CPU or deterministic
        self.state = state
        self.where = where
        self.clear_gradients = clear_gradients
        # Of each rank that computes wrong, on all ranks.
        self.tell: Callable[[str], None] = lambda text: None

    def is_due(self, step: int) -> bool:
        return self.interval is not None and step % self.interval == 0

    def twice(self, run_pass: Callable[[Iterator[Batch]], Losses], batches: Iterator[Batch], count: int) -> Losses:
        """What `run_pass` returns for the next `count` micro batches; raises Miscomputed on the rank that gives two results."""
        chunks = self.state.chunks
        micro_batches = list(itertools.islice(batches, count))
        with unreduced(chunks) as finalize:
            restore = _restorer(chunks, self.where)
            first = self._observe(run_pass(iter(micro_batches)))
            self.clear_gradients()
            restore()
            losses = run_pass(iter(micro_batches))
            second = self._observe(losses)
            self._compare(first, second)
            finalize()
        return losses

    def _observe(self, losses: Losses) -> dict[str, Tensor]:
        """The losses of the last stage, and a number for each gradient and each weight of this rank."""
        of = digests if self.is_exact else norms
        chunks = self.state.chunks
        reported = [loss.detach().reshape(-1)[:1] for entry in losses for loss in entry.values()]
        return {
            "loss": of(reported),
            "gradient": of((parameter.main_grad for _, parameter in _parameters(chunks))),
            "weight": digests((parameter.data for _, parameter in _parameters(chunks))),
        }

    def _compare(self, first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
        step = self.state.iteration + 1
        problem = self._difference(first, second)
        own = Answer(
            torch.distributed.get_rank(),
            socket.gethostname(),
            problem and f"computed step {step} twice, and the results differ: {problem}",
            *self._shared_weights(second["weight"]),
        )
        answers = [
            Answer(each["rank"], each["host"], each["problem"], tuple(each["dense"]), tuple(each["expert"]))
            for each in agreement.of_all_ranks(dataclasses.asdict(own))
        ]
        found = verdict(answers, step)
        for rank, text in sorted(found.items()):
            self.tell(f"rank {rank} on {answers[rank].host}: {text}")
        if own.rank in found:
            raise Miscomputed(found[own.rank])
        if found:
            raise Echo(f"rank {min(found)} computes wrong")

    def _difference(self, first: dict[str, Tensor], second: dict[str, Tensor]) -> str | None:
        names = [name for name, _ in _parameters(self.state.chunks)]
        for kind in ("weight", "loss", "gradient"):
            exact = self.is_exact or kind == "weight"
            same = first[kind] == second[kind] if exact else torch.isclose(first[kind], second[kind], TOLERANCE, equal_nan=True)
            if not bool(same.all()):
                at = int((~same).nonzero()[0])
                return "the loss" if kind == "loss" else f"the {kind} of {names[at]}"
        return None

    def _shared_weights(self, weights: Tensor) -> tuple[tuple[str, str], tuple[str, str]]:
        """Two groups of ranks with the same weights, by name, and what this one holds: of experts, and of all else."""
        of_experts = [not getattr(parameter, "allreduce", True) for _, parameter in _parameters(self.state.chunks)]
        stage = parallel_state.get_pipeline_model_parallel_rank()
        dense = f"{stage}/{parallel_state.get_tensor_model_parallel_rank()}"
        expert = f"{stage}/{parallel_state.get_expert_model_parallel_rank()}/{parallel_state.get_expert_tensor_parallel_rank()}"
        values = [str(value) for value in weights.tolist()]
        of = {kind: " ".join(v for v, e in zip(values, of_experts, strict=True) if e is kind) for kind in (True, False)}
        return (dense, _hash(of[False])), (expert, _hash(of[True]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def verdict(answers: list[Answer], step: int) -> dict[int, str]:
    """The ranks that are wrong, and why. Where two hold different weights and no majority says which is wrong, the lower speaks
    for both, unless one of them has contradicted itself."""
    found = {answer.rank: answer.problem for answer in answers if answer.problem}
    if found:
        return {rank: _with_others(problem, rank, found) for rank, problem in found.items()}
    for kind in ("dense", "expert"):
        groups: dict[str, list[tuple[Answer, str]]] = collections.defaultdict(list)
        for answer in answers:
            group, value = getattr(answer, kind)
            groups[group].append((answer, value))
        for members in groups.values():
            found |= _outvoted(members, step)
    return found


def _with_others(problem: str, rank: int, found: dict[int, str]) -> str:
    """Ranks that share layers or pipeline stages pass wrong numbers on to each other."""
    others = ", ".join(str(other) for other in sorted(found) if other != rank)
    return f"{problem}; so do those of ranks {others}: one of them is the cause" if others else problem


def _outvoted(members: list[tuple[Answer, str]], step: int) -> dict[int, str]:
    counts = collections.Counter(value for _, value in members)
    if len(counts) == 1:
        return {}
    most, count = counts.most_common(1)[0]
    if 2 * count > len(members):
        others = f"other weights than the {count} ranks that share them"
        return {answer.rank: f"holds at step {step} {others}" for answer, value in members if value != most}
    suspects = ", ".join(f"{answer.rank} on {answer.host}" for answer, _ in members)
    speaker = min(answer.rank for answer, _ in members)
    text = f"at step {step} the weights of ranks that share them differ, and no majority says whose are wrong"
    return {speaker: f"{text}: {suspects}"}


@contextlib.contextmanager
def unreduced(chunks: list[Chunk]) -> Iterator[Callable[[], None]]:
    """Within, a pass leaves each rank its own gradients; the function given reduces those of the last one."""
    config = unwrapped(chunks[0]).config
    before = config.finalize_model_grads_func
    settings = [chunk.ddp_config for chunk in chunks]
    overlaps = [each.overlap_grad_reduce for each in settings]
    held: list[Callable[[], None]] = []

    def hold(*arguments: Any, **options: Any) -> None:
        held[:] = [partial(finalize_model_grads, *arguments, **options)]

    # The hooks of overlapping reduction ask these at each gradient.
    for each in settings:
        each.overlap_grad_reduce = False
    config.finalize_model_grads_func = partial(wgrad_accumulation.finish, finalize=hold)
    try:
        yield lambda: held.pop()()
    finally:
        config.finalize_model_grads_func = before
        for each, overlap in zip(settings, overlaps, strict=True):
            each.overlap_grad_reduce = overlap


def _parameters(chunks: list[Chunk]) -> Iterator[tuple[str, Any]]:
    for chunk in chunks:
        for name, parameter in unwrapped(chunk).named_parameters():
            if parameter.requires_grad:
                yield name, parameter


def _restorer(chunks: list[Chunk], where: torch.device) -> Callable[[], None]:
    """Sets back what a pass changes beside the gradients: random generators, and buffers, such as a router's counts."""
    buffers = [(buffer, buffer.clone()) for chunk in chunks for buffer in unwrapped(chunk).buffers()]
    on_gpu = where.type == device.CUDA
    states = random.getstate(), np.random.get_state(), torch.get_rng_state(), get_cuda_rng_tracker().get_states()
    of_gpu = torch.cuda.get_rng_state(where) if on_gpu else None

    @torch.no_grad()
    def restore() -> None:
        for buffer, value in buffers:
            buffer.copy_(value)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        get_cuda_rng_tracker().set_states(states[3])
        if of_gpu is not None:
            torch.cuda.set_rng_state(of_gpu, where)

    return restore


@torch.no_grad()
def digests(tensors: Iterable[Tensor]) -> Tensor:
    """An int64 for each tensor, of its bits: the sum of them, as integers, each times an odd number of its own, modulo 2^64.

    One element that differs, in whatever bits, always changes it: an odd number has an inverse modulo 2^64.
    """
    return _stacked([_digest(tensor) for tensor in tensors], torch.int64)


def _digest(tensor: Tensor) -> Tensor:
    bits = tensor.contiguous().view(-1).view(INTEGERS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for first in range(0, len(bits), ELEMENTS):
        part = bits[first : first + ELEMENTS].long()
        odd = torch.arange(first, first + len(part), device=tensor.device).mul_(2 * 0x9E3779B97F4A7).add_(1)
        total += odd.mul_(part).sum()
    return total


@torch.no_grad()
def norms(tensors: Iterable[Tensor]) -> Tensor:
    """The norm of each tensor in float64."""
    return _stacked([torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors], torch.float64)


def _stacked(numbers: list[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.stack(numbers).cpu() if numbers else torch.zeros(0, dtype=dtype)
