"""Optional packages are tried once, at the start, on every rank: one that fails is left out on all, and training goes on.

What pip can install need not work. flash-attn-4, quack and cutlass-dsl are compiled where they run: against another CUDA, from a
directory that nobody has tried, or with a compiler that is not there. Each then failed at the first step, as an internal error.
Here each computes one layer's part of a micro batch, forward and backward. What is compiled for that is what the first step would
have waited for.

`Trials` also keeps the start short. The packages are imported by a thread while the process groups are formed. Where the same
trials have passed at an earlier start (`lt_train.train.trial_memory`), the model is built meanwhile, too.
"""

import contextlib
import threading
from collections.abc import Callable

import torch
from megatron.core import parallel_state

from lt_shared.console import warn
from lt_train.checkpoint import thread_switching
from lt_train.config import kernels
from lt_train.config.kernels import FLASH_ATTENTION_4, GROUPED_BY_QUACK, NONE_FAILED, PEER_MEMORY, Failures, Kernels
from lt_train.config.optional_packages import FLASH_ATTENTION, QUACK, SYMMETRIC_MEMORY, Package
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.layers import FUSED_LINEAR, GEMM_EPILOGUE, TRITON
from lt_train.config.settings.memory import Memory
from lt_train.kernels import gemm_epilogues, grouped_gemm_epilogues
from lt_train.parallel import symmetric_memory
from lt_train.runtime import agreement, device
from lt_train.runtime.start_clock import clock
from lt_train.train import trial_memory
from lt_train.train.trial_shapes import Shapes

# What a step takes longer without the package: Llama 3 8B's width, 8 layers, 16,384 tokens on one H100, 2026-11-23.
COSTS = {
    FLASH_ATTENTION: "1.4 to 1.9% slower for Llama 3 8B on an H100",
    QUACK: "2.2 to 2.7% slower for Llama 3 8B on an H100",
    SYMMETRIC_MEMORY: "for which GEMMs wait",
}


class Trials:
    """Those of one rank, from before its process groups until its first step. All ranks call its methods."""

    def __init__(self, config: RunConfig, where: torch.device):
        self._config, self._where, self._capability = config, where, device.capability_of(where)
        self._shapes = Shapes.of_run(config)
        self._passed = False
        # Not a daemon: an interpreter that ends within the C++ of an import aborts the process.
        self._thread = threading.Thread(target=self._import, name="kernels")
        self._thread.start()

    def _choose(self, failed: Failures = NONE_FAILED) -> Kernels:
        return kernels.choose(self._config, self._capability, failed)

    def _import(self) -> None:
        # What fails here fails again where it is tried, and is told there.
        with thread_switching.often():
            for name, load in _imports(self._choose()).items():
                with clock.beside(f"import of {name}"), contextlib.suppress(Exception):
                    load()

    def chosen(self, is_first: bool) -> Kernels:
        """The choice that all ranks make, of what works on all of them, or has worked."""
        first = self._choose()
        is_tried = bool(_alone(self._shapes, first, self._where))
        ranks = self._config.parallelism.world_size
        self._memory = trial_memory.of_rank(self._shapes, ranks, first, self._where) if is_tried else trial_memory.NONE
        has_passed = self._memory.take()
        if not has_passed:
            self._thread.join()
            clock.lap("imports of kernels")
        failed = failures(self._shapes, self._config.memory, first, self._where, has_passed)
        self._passed = not failed
        found = self._choose(failed) if failed else first
        if is_first:
            report(failed, found, self._where)
        clock.lap("choice of kernels")
        return found

    def confirm(self) -> None:
        """The first step is made: what has passed is remembered."""
        if self._passed:
            self._memory.confirm()


def _imports(chosen: Kernels) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {}
    if TRITON in chosen.record().values():
        found[TRITON] = _hash_triton
    if chosen.attention == FLASH_ATTENTION_4:
        from lt_train.models.mixers import flash_attention

        found[FLASH_ATTENTION.name] = flash_attention.load
    if chosen.swiglu == GEMM_EPILOGUE or chosen.cross_entropy == FUSED_LINEAR:
        found[QUACK.name] = gemm_epilogues.load
    elif chosen.experts in GROUPED_BY_QUACK:
        found[QUACK.name] = grouped_gemm_epilogues.load
    return found


def _hash_triton() -> None:
    """The first kernel waits for the hash of Triton's files, 0.3 s, most of them without the interpreter."""
    from triton.runtime.cache import triton_key

    triton_key()


def failures(shapes: Shapes, memory: Memory, chosen: Kernels, where: torch.device, has_passed: bool = False) -> Failures:
    """The packages of `chosen` that do not work on some rank, with the reason that the first such rank has. All ranks call it.

    A rank where all has passed before tries only what it needs the others for.
    """
    own = {}
    trials = {} if has_passed else _alone(shapes, chosen, where)
    for package, trial in (trials | _together(memory, chosen)).items():
        if reason := _failure(trial, where):
            own[package.distribution] = reason
        clock.lap(f"trial of {package.name}")
    answers = agreement.of_all_ranks(own)
    found = {}
    for package in COSTS:
        reasons = [(rank, answer[package.distribution]) for rank, answer in enumerate(answers) if package.distribution in answer]
        if reasons:
            rank, reason = reasons[0]
            found[package] = reason if len(reasons) == len(answers) else f"on rank {rank}: {reason}"
    return found


def report(failed: Failures, left: Kernels, where: torch.device) -> None:
    """Warn of what is left out and what computes it instead; also of what is installed without something that it imports."""
    instead = {
        FLASH_ATTENTION: f"attention by {left.attention}",
        QUACK: f"SwiGLU by {left.swiglu}, cross entropy by {left.cross_entropy}"
        + (f", experts {left.experts}" if left.experts else ""),
        SYMMETRIC_MEMORY: f"collectives by {left.collectives}",
    }
    incomplete = {
        package: f"ModuleNotFoundError: {missing}"
        for package in instead
        if where.type == device.CUDA and (missing := package.missing()) not in (None, package.modules[0])
    }
    for package, reason in {**incomplete, **failed}.items():
        warn(f"{package} does not work here: {reason}: {instead[package]} instead, {COSTS[package]}")


def _alone(shapes: Shapes, chosen: Kernels, where: torch.device) -> dict[Package, Callable[[], None]]:
    """The trials that a rank makes by itself."""
    trials: dict[Package, Callable[[], None]] = {}
    if chosen.attention == FLASH_ATTENTION_4:
        trials[FLASH_ATTENTION] = lambda: _try_attention(shapes, where)
    if chosen.swiglu == GEMM_EPILOGUE or chosen.cross_entropy == FUSED_LINEAR or chosen.experts in GROUPED_BY_QUACK:
        trials[QUACK] = lambda: _try_gemm_epilogues(shapes, chosen, where)
    return trials


def _together(memory: Memory, chosen: Kernels) -> dict[Package, Callable[[], None]]:
    """The trials that ranks make with each other."""
    return {SYMMETRIC_MEMORY: lambda: symmetric_memory.check(_sharing(memory))} if chosen.collectives == PEER_MEMORY else {}


def _sharing(memory: Memory) -> torch.distributed.ProcessGroup:
    """The ranks that read each other's memory."""
    if not memory.fully_sharded:
        return parallel_state.get_tensor_model_parallel_group()  # type: ignore[no-any-return]
    is_part = memory.replicas > 1
    return parallel_state.get_data_parallel_group(  # type: ignore[no-any-return]
        with_context_parallel=True, partial_data_parallel=is_part
    )


def _failure(trial: Callable[[], None], where: torch.device) -> str | None:
    """Why it fails, in one line; None when it does not."""
    try:
        trial()
        if where.type == device.CUDA:
            torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        first, *_ = str(error).strip().split("\n")
        return f"{type(error).__name__}: {first:.200}"
    finally:
        if where.type == device.CUDA:
            torch.cuda.empty_cache()
    return None


def _try_attention(shapes: Shapes, where: torch.device) -> None:
    """Of a sample as long as a rank's share: with context parallelism the kernels are the same ones, for more keys."""
    from lt_train.models.mixers import flash_attention

    dtype = torch.bfloat16 if shapes.is_bfloat16 else torch.float16
    heads, groups, key_size, value_size = shapes.heads, shapes.query_groups, shapes.key_size, shapes.value_size
    generator = torch.Generator(where)
    query, key, value = (
        torch.randn(
            shapes.tokens, shapes.samples, count, size, dtype=dtype, device=where, generator=generator, requires_grad=True
        )
        for count, size in ((heads, key_size), (groups, key_size), (groups, value_size))
    )
    documents = None
    if shapes.has_documents:
        documents = torch.tensor([0, 1, shapes.tokens], dtype=torch.int32, device=where).repeat(shapes.samples, 1)
    attended = flash_attention.attend(query, key, value, None, shapes.window, None, documents)
    torch.autograd.grad(attended, (query, key, value), attended)


def _try_gemm_epilogues(shapes: Shapes, chosen: Kernels, where: torch.device) -> None:
    # Its own: the run's random numbers are not touched.
    generator = torch.Generator(where)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=where, generator=generator)

    hidden, inner = shapes.hidden, shapes.ffn_hidden
    rows = random(shapes.samples * shapes.tokens, hidden)
    if chosen.swiglu == GEMM_EPILOGUE:
        gate_up, activation = random(len(rows), 2 * inner), random(len(rows), inner)
        gemm_epilogues.gated_gemm(rows, random(2 * inner, hidden), gate_up, activation)
        recomputed = activation if chosen.recomputes_swiglu else None
        gemm_epilogues.gated_gemm_gradient(rows, random(hidden, inner), gate_up, torch.empty_like(gate_up), recomputed)
    if chosen.experts in GROUPED_BY_QUACK:
        _try_grouped_gemms(rows, random(2, 2 * shapes.expert_hidden, hidden))
    if chosen.cross_entropy == FUSED_LINEAR:
        offsets = torch.zeros(len(rows), device=where)
        gemm_epilogues.exponential_gemm(rows, random(shapes.vocabulary, hidden), offsets)


def _try_grouped_gemms(rows: torch.Tensor, weight: torch.Tensor) -> None:
    borders = torch.tensor([0, 0, len(rows)], dtype=torch.int32, device=rows.device)
    gate_up, _ = grouped_gemm_epilogues.gated(rows, weight, torch.ones(len(rows), device=rows.device), borders)
    grouped_gemm_epilogues.times_transposed(rows, weight, borders)
    grouped_gemm_epilogues.times(gate_up, weight, borders)
    grouped_gemm_epilogues.weight_gradient(gate_up, rows, borders, weight, adds=False)
