"""Compute every --check-replay-interval-th step twice and compare the results, to find a rank whose processor computes wrong.

A defective GPU or CPU gives wrong gradients without any error, and the reduction spreads them over all ranks. So neither pass
reduces its gradients: each rank compares its two results before it shares them. Ranks that hold the same weights also compare the
weights: the majority is right. The step uses the second pass, so its numbers are as without a check; it takes one forward and
backward pass longer.

If a step is deterministic (on a CPU, with --deterministic), one different bit is a difference. Otherwise only norms are compared,
within TOLERANCE, which detects a flipped exponent but not the last digits.
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
from lt_train.models.chunks import unwrap
from lt_train.ops import wgrad_accumulation
from lt_train.parallel.ddp import Chunk
from lt_train.process import agreement, device, process_lifetime
from lt_train.process.interruption import Echo

if TYPE_CHECKING:
    from lt_train.checkpoint.training_state import TrainingState

Losses = list[dict[str, Tensor]]
TOLERANCE = 1e-3
# A digest is computed over parts of this many elements; the two int64 tensors of a part take 64 MiB.
ELEMENTS = 2**22
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Miscomputed(ToolError):
    """This rank computed two different results for a step, or its weights differ from the other ranks' copies."""

    def __init__(self, message: str):
        super().__init__(message, "the machine is defective until shown otherwise: exclude it (lt-monitor tail-cause names it)")
        self.exit_code = process_lifetime.miscomputed_code()  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Answer:
    """A rank's report.

    `problem` says how its two passes differ. `dense` and `expert` each hold the name of the group of ranks that share these
    weights, and the digest of the weights on this rank.
    """

    rank: int
    host: str
    problem: str | None
    dense: tuple[str, str]
    expert: tuple[str, str]


class StepCheck:
    """Compute every `interval`-th step twice; without an `interval`, no step."""

    def __init__(
        self,
        interval: int | None,
        deterministic: bool,
        state: "TrainingState",
        rank_device: torch.device,
        clear_gradients: Callable[[], None],
    ):
        self.interval = interval
        self.is_exact = rank_device.type == device.CPU or deterministic
        self.state = state
        self.device = rank_device
        self.clear_gradients = clear_gradients
        # Called on all ranks, with a line per rank that computes wrong.
        self.tell: Callable[[str], None] = lambda text: None

    def is_due(self, step: int) -> bool:
        return self.interval is not None and step % self.interval == 0

    def run_twice(self, run_pass: Callable[[Iterator[Batch]], Losses], batches: Iterator[Batch], count: int) -> Losses:
        """Call `run_pass` twice on the next `count` micro batches and return the second result.

        Raise Miscomputed on a rank whose two results differ.
        """
        chunks = self.state.chunks
        micro_batches = list(itertools.islice(batches, count))
        with hold_reduction(chunks) as finalize:
            restore = _restorer(chunks, self.device)
            first = self._observe(run_pass(iter(micro_batches)))
            self.clear_gradients()
            restore()
            losses = run_pass(iter(micro_batches))
            second = self._observe(losses)
            self._compare(first, second)
            finalize()
        return losses

    def _observe(self, losses: Losses) -> dict[str, Tensor]:
        """Return the digests or norms of the losses, the gradients and the weights on this rank, one number per tensor."""
        reduce = digests if self.is_exact else norms
        chunks = self.state.chunks
        reported = [loss.detach().reshape(-1)[:1] for entry in losses for loss in entry.values()]
        return {
            "loss": reduce(reported),
            "gradient": reduce((parameter.main_grad for _, parameter in _parameters(chunks))),
            "weight": digests((parameter.data for _, parameter in _parameters(chunks))),
        }

    def _compare(self, first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
        step = self.state.iteration + 1
        problem = self._difference(first, second)
        local_answer = Answer(
            torch.distributed.get_rank(),
            socket.gethostname(),
            problem and f"computed step {step} twice, and the results differ: {problem}",
            *self._shared_weights(second["weight"]),
        )
        answers = [
            Answer(answer["rank"], answer["host"], answer["problem"], tuple(answer["dense"]), tuple(answer["expert"]))
            for answer in agreement.gather_objects(dataclasses.asdict(local_answer))
        ]
        problems = verdict(answers, step)
        for rank, text in sorted(problems.items()):
            self.tell(f"rank {rank} on {answers[rank].host}: {text}")
        if local_answer.rank in problems:
            raise Miscomputed(problems[local_answer.rank])
        if problems:
            raise Echo(f"rank {min(problems)} computes wrong")

    def _difference(self, first: dict[str, Tensor], second: dict[str, Tensor]) -> str | None:
        names = [name for name, _ in _parameters(self.state.chunks)]
        for kind in ("weight", "loss", "gradient"):
            exact = self.is_exact or kind == "weight"
            same = first[kind] == second[kind] if exact else torch.isclose(first[kind], second[kind], TOLERANCE, equal_nan=True)
            if not bool(same.all()):
                index = int((~same).nonzero()[0])
                return "the loss" if kind == "loss" else f"the {kind} of {names[index]}"
        return None

    def _shared_weights(self, weights: Tensor) -> tuple[tuple[str, str], tuple[str, str]]:
        """Return the group name and the weight digest of the dense weights, then of the expert weights, of this rank."""
        is_expert = [not getattr(parameter, "allreduce", True) for _, parameter in _parameters(self.state.chunks)]
        stage = parallel_state.get_pipeline_model_parallel_rank()
        dense = f"{stage}/{parallel_state.get_tensor_model_parallel_rank()}"
        expert = f"{stage}/{parallel_state.get_expert_model_parallel_rank()}/{parallel_state.get_expert_tensor_parallel_rank()}"
        values = [str(value) for value in weights.tolist()]
        texts = {kind: " ".join(v for v, e in zip(values, is_expert, strict=True) if e is kind) for kind in (True, False)}
        return (dense, _hash(texts[False])), (expert, _hash(texts[True]))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def verdict(answers: list[Answer], step: int) -> dict[int, str]:
    """Return the ranks that compute wrong, with the reasons.

    A rank whose two passes differ is reported alone. Otherwise ranks that hold other weights than the majority are reported; if
    there is no majority, the lowest rank is reported for all.
    """
    problems = {answer.rank: answer.problem for answer in answers if answer.problem}
    if problems:
        return {rank: _with_others(problem, rank, problems) for rank, problem in problems.items()}
    for kind in ("dense", "expert"):
        groups: dict[str, list[tuple[Answer, str]]] = collections.defaultdict(list)
        for answer in answers:
            group, value = getattr(answer, kind)
            groups[group].append((answer, value))
        for members in groups.values():
            problems |= _outvoted(members, step)
    return problems


def _with_others(problem: str, rank: int, problems: dict[int, str]) -> str:
    """Add the other ranks with a problem, because ranks that share layers or a pipeline pass wrong numbers on to each other."""
    other_ranks = ", ".join(str(other) for other in sorted(problems) if other != rank)
    return f"{problem}; so do those of ranks {other_ranks}: one of them is the cause" if other_ranks else problem


def _outvoted(members: list[tuple[Answer, str]], step: int) -> dict[int, str]:
    """Return the members of a group whose weights differ from the majority, with the reasons."""
    counts = collections.Counter(value for _, value in members)
    if len(counts) == 1:
        return {}
    majority_value, count = counts.most_common(1)[0]
    if 2 * count > len(members):
        difference = f"other weights than the {count} ranks that share them"
        return {answer.rank: f"holds at step {step} {difference}" for answer, value in members if value != majority_value}
    suspects = ", ".join(f"{answer.rank} on {answer.host}" for answer, _ in members)
    speaker = min(answer.rank for answer, _ in members)
    text = f"at step {step} the weights of ranks that share them differ, and no majority says whose are wrong"
    return {speaker: f"{text}: {suspects}"}


@contextlib.contextmanager
def hold_reduction(chunks: list[Chunk]) -> Iterator[Callable[[], None]]:
    """Let passes inside the context reduce no gradients. Yield a function that reduces the gradients of the last pass."""
    config = unwrap(chunks[0]).config
    original_finalize = config.finalize_model_grads_func
    settings = [chunk.ddp_config for chunk in chunks]
    overlaps = [ddp_config.overlap_grad_reduce for ddp_config in settings]
    held: list[Callable[[], None]] = []

    def hold(*arguments: Any, **options: Any) -> None:
        held[:] = [partial(finalize_model_grads, *arguments, **options)]

    # The gradient hooks of DDP read this flag for each gradient, so it can be changed after they are registered.
    for ddp_config in settings:
        ddp_config.overlap_grad_reduce = False
    config.finalize_model_grads_func = partial(wgrad_accumulation.clear_and_finalize, finalize=hold)
    try:
        yield lambda: held.pop()()
    finally:
        config.finalize_model_grads_func = original_finalize
        for ddp_config, overlap in zip(settings, overlaps, strict=True):
            ddp_config.overlap_grad_reduce = overlap


def _parameters(chunks: list[Chunk]) -> Iterator[tuple[str, Any]]:
    for chunk in chunks:
        for name, parameter in unwrap(chunk).named_parameters():
            if parameter.requires_grad:
                yield name, parameter


def _restorer(chunks: list[Chunk], rank_device: torch.device) -> Callable[[], None]:
    """Return a function that restores the current random states and buffers, for example the token counts of a router."""
    buffers = [(buffer, buffer.clone()) for chunk in chunks for buffer in unwrap(chunk).buffers()]
    on_gpu = rank_device.type == device.CUDA
    states = random.getstate(), np.random.get_state(), torch.get_rng_state(), get_cuda_rng_tracker().get_states()
    gpu_state = torch.cuda.get_rng_state(rank_device) if on_gpu else None

    @torch.no_grad()
    def restore() -> None:
        for buffer, value in buffers:
            buffer.copy_(value)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        get_cuda_rng_tracker().set_states(states[3])
        if gpu_state is not None:
            torch.cuda.set_rng_state(gpu_state, rank_device)

    return restore


@torch.no_grad()
def digests(tensors: Iterable[Tensor]) -> Tensor:
    """Return an int64 digest of every tensor's bits.

    A digest is the sum over all elements of the element's bits, as an integer, times an odd number that depends on its position,
    modulo 2^64. A change in a single element always changes the digest, because an odd number has an inverse modulo 2^64.
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
    """Return every tensor's norm in float64."""
    return _stacked([torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors], torch.float64)


def _stacked(numbers: list[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.stack(numbers).cpu() if numbers else torch.zeros(0, dtype=dtype)
