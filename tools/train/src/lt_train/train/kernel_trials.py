"""Try each optional kernel package once at the start of a run. If it fails on one rank, no rank uses it.

A package that pip has installed may still fail. flash-attn-4, quack and cutlass-dsl compile on the machine that runs them, maybe
with another CUDA or without a compiler, and would fail in the first step with an internal error. A trial computes one layer for a
micro batch, forward and backward. It compiles the kernels that the first step needs, so a trial costs little.
"""

import contextlib
import threading
from collections.abc import Callable

import torch
from megatron.core import parallel_state

from lt_shared.console import warn
from lt_train.checkpoint import thread_switching
from lt_train.config import kernels
from lt_train.config.kernels import (
    FLASH_ATTENTION_4,
    FLASH_LINEAR,
    FLASH_LINEAR_KIMI,
    GROUPED_BY_QUACK,
    NONE_FAILED,
    PEER_MEMORY,
    Failures,
    Kernels,
)
from lt_train.config.optional_packages import FLASH_ATTENTION, FLASH_LINEAR_ATTENTION, QUACK, SYMMETRIC_MEMORY, Package
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.layers import FUSED_LINEAR, GEMM_EPILOGUE, TRITON
from lt_train.config.settings.memory import Memory
from lt_train.kernels import delta_rules, gemm_epilogues, grouped_gemm_epilogues
from lt_train.parallel import symmetric_memory
from lt_train.process import agreement, device
from lt_train.process.start_clock import clock
from lt_train.train import trial_memory
from lt_train.train.trial_shapes import Shapes

# Slowdown of a step without the package: Llama 3 8B's width, 8 layers, 16,384 tokens on one H100, 2026-11-23.
COSTS = {
    FLASH_ATTENTION: "1.4 to 1.9% slower for Llama 3 8B on an H100",
    QUACK: "2.2 to 2.7% slower for Llama 3 8B on an H100",
    FLASH_LINEAR_ATTENTION: "which is several times slower in these layers",
    SYMMETRIC_MEMORY: "for which GEMMs wait",
}


class Trials:
    """A rank's kernel trials, from before its process groups until its first step. All ranks call the methods."""

    def __init__(self, config: RunConfig, rank_device: torch.device):
        self._config, self._device, self._capability = config, rank_device, device.capability_of(rank_device)
        self._shapes = Shapes.from_config(config)
        self._passed = False
        # The packages are imported while the process groups are created. Not a daemon thread: an interpreter that exits inside
        # the C++ code of an import aborts the process.
        self._thread = threading.Thread(target=self._import, name="kernels")
        self._thread.start()

    def _choose(self, failed: Failures = NONE_FAILED) -> Kernels:
        return kernels.choose(self._config, self._capability, failed)

    def _import(self) -> None:
        # A failing import fails again in the trial of its package, which reports it.
        with thread_switching.switch_often():
            for name, load in _imports(self._choose()).items():
                with clock.beside(f"import of {name}"), contextlib.suppress(Exception):
                    load()

    def choose_kernels(self, is_first: bool) -> Kernels:
        """Choose the kernels for all ranks, from the packages that work on all ranks, now or at an earlier start."""
        first = self._choose()
        is_tried = bool(_alone(self._shapes, first, self._device))
        ranks = self._config.parallelism.world_size
        self._memory = trial_memory.open_memory(self._shapes, ranks, first, self._device) if is_tried else trial_memory.NONE
        has_passed = self._memory.take()
        if not has_passed:
            # After a passed trial, the model is built while the thread still imports.
            self._thread.join()
            clock.lap("imports of kernels")
        failed = failures(self._shapes, self._config.memory, first, self._device, has_passed)
        self._passed = not failed
        chosen = self._choose(failed) if failed else first
        if is_first:
            report(failed, chosen, self._device)
        clock.lap("choice of kernels")
        return chosen

    def confirm(self) -> None:
        """Remember that the trials have passed. Called after the first step."""
        if self._passed:
            self._memory.confirm()


def _imports(chosen: Kernels) -> dict[str, Callable[[], object]]:
    """Return the functions that import the packages of `chosen`, by name."""
    imports: dict[str, Callable[[], object]] = {}
    if TRITON in chosen.record().values():
        imports[TRITON] = _hash_triton
    if chosen.attention == FLASH_ATTENTION_4:
        from lt_train.models.mixers import flash_attention

        imports[FLASH_ATTENTION.name] = flash_attention.load
    if chosen.swiglu == GEMM_EPILOGUE or chosen.cross_entropy == FUSED_LINEAR:
        imports[QUACK.name] = gemm_epilogues.load
    elif chosen.experts in GROUPED_BY_QUACK:
        imports[QUACK.name] = grouped_gemm_epilogues.load
    if chosen.delta in (FLASH_LINEAR, FLASH_LINEAR_KIMI):
        imports[FLASH_LINEAR_ATTENTION.name] = delta_rules.load
    return imports


def _hash_triton() -> None:
    """Hash Triton's files in advance, because the first kernel waits for it: 0.3 s, which mostly do not hold the GIL."""
    from triton.runtime.cache import triton_key

    triton_key()


def failures(shapes: Shapes, memory: Memory, chosen: Kernels, rank_device: torch.device, has_passed: bool = False) -> Failures:
    """Return the packages of `chosen` that fail on some rank, with the reason on the first such rank. All ranks call it.

    If the trials of a rank have passed at an earlier start, it repeats only the trials that involve other ranks.
    """
    local_failures = {}
    trials = {} if has_passed else _alone(shapes, chosen, rank_device)
    for package, trial in (trials | _together(memory, chosen)).items():
        if reason := _failure(trial, rank_device):
            local_failures[package.distribution] = reason
        clock.lap(f"trial of {package.name}")
    answers = agreement.gather_objects(local_failures)
    failed = {}
    for package in COSTS:
        reasons = [(rank, answer[package.distribution]) for rank, answer in enumerate(answers) if package.distribution in answer]
        if reasons:
            rank, reason = reasons[0]
            failed[package] = reason if len(reasons) == len(answers) else f"on rank {rank}: {reason}"
    return failed


def report(failed: Failures, chosen: Kernels, rank_device: torch.device) -> None:
    """Warn of failed packages and the kernels `chosen` instead, and of packages whose dependencies are not installed."""
    instead = {
        FLASH_ATTENTION: f"attention by {chosen.attention}",
        QUACK: f"SwiGLU by {chosen.swiglu}, cross entropy by {chosen.cross_entropy}"
        + (f", experts {chosen.experts}" if chosen.experts else ""),
        FLASH_LINEAR_ATTENTION: f"gated delta by {chosen.delta}",
        SYMMETRIC_MEMORY: f"collectives by {chosen.collectives}",
    }
    incomplete = {
        package: f"ModuleNotFoundError: {missing}"
        for package in instead
        if rank_device.type == device.CUDA and (missing := package.missing()) not in (None, package.modules[0])
    }
    for package, reason in {**incomplete, **failed}.items():
        warn(f"{package} does not work here: {reason}: {instead[package]} instead, {COSTS[package]}")


def _alone(shapes: Shapes, chosen: Kernels, rank_device: torch.device) -> dict[Package, Callable[[], None]]:
    """Return the trials that involve no other rank."""
    trials: dict[Package, Callable[[], None]] = {}
    if chosen.attention == FLASH_ATTENTION_4:
        trials[FLASH_ATTENTION] = lambda: _try_attention(shapes, rank_device)
    if chosen.swiglu == GEMM_EPILOGUE or chosen.cross_entropy == FUSED_LINEAR or chosen.experts in GROUPED_BY_QUACK:
        trials[QUACK] = lambda: _try_gemm_epilogues(shapes, chosen, rank_device)
    if chosen.delta in (FLASH_LINEAR, FLASH_LINEAR_KIMI):
        trials[FLASH_LINEAR_ATTENTION] = lambda: _try_delta_rule(shapes, chosen.delta == FLASH_LINEAR_KIMI, rank_device)
    return trials


def _together(memory: Memory, chosen: Kernels) -> dict[Package, Callable[[], None]]:
    """Return the trials that ranks run together."""
    return {SYMMETRIC_MEMORY: lambda: symmetric_memory.check(_sharing(memory))} if chosen.collectives == PEER_MEMORY else {}


def _sharing(memory: Memory) -> torch.distributed.ProcessGroup:
    """Return the group of ranks that read each other's memory."""
    if not memory.fully_sharded:
        return parallel_state.get_tensor_model_parallel_group()  # type: ignore[no-any-return]
    is_part = memory.replicas > 1
    return parallel_state.get_data_parallel_group(  # type: ignore[no-any-return]
        with_context_parallel=True, partial_data_parallel=is_part
    )


def _failure(trial: Callable[[], None], rank_device: torch.device) -> str | None:
    """Run `trial`. Return its error in one line, or None if it passes."""
    try:
        trial()
        if rank_device.type == device.CUDA:
            torch.cuda.synchronize()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        first, *_ = str(error).strip().split("\n")
        return f"{type(error).__name__}: {first:.200}"
    finally:
        if rank_device.type == device.CUDA:
            torch.cuda.empty_cache()
    return None


def _try_attention(shapes: Shapes, rank_device: torch.device) -> None:
    """Try the attention of a sample as long as this rank's part. Context parallelism uses the same kernels with more keys."""
    from lt_train.models.mixers import flash_attention

    dtype = torch.bfloat16 if shapes.is_bfloat16 else torch.float16
    heads, groups, key_size, value_size = shapes.heads, shapes.query_groups, shapes.key_size, shapes.value_size
    generator = torch.Generator(rank_device)
    query, key, value = (
        torch.randn(
            shapes.tokens, shapes.samples, count, size, dtype=dtype, device=rank_device, generator=generator, requires_grad=True
        )
        for count, size in ((heads, key_size), (groups, key_size), (groups, value_size))
    )
    documents = None
    if shapes.has_documents:
        documents = torch.tensor([0, 1, shapes.tokens], dtype=torch.int32, device=rank_device).repeat(shapes.samples, 1)
    attended = flash_attention.attend(query, key, value, None, shapes.window, None, documents)
    torch.autograd.grad(attended, (query, key, value), attended)


def _try_delta_rule(shapes: Shapes, by_channel: bool, rank_device: torch.device) -> None:
    delta, dtype = shapes.delta, torch.bfloat16 if shapes.is_bfloat16 else torch.float16
    assert delta is not None
    samples, tokens = (1, shapes.samples * shapes.tokens) if shapes.has_documents else (shapes.samples, shapes.tokens)
    generator = torch.Generator(rank_device)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=dtype, device=rank_device, generator=generator, requires_grad=True)

    borders = torch.tensor([0, 1, tokens], device=rank_device) if shapes.has_documents else None
    keys, values, size = delta.key_heads, delta.value_heads, delta.key_size
    channels = [
        random(samples, tokens, heads * width) for heads, width in ((keys, size), (keys, size), (values, delta.value_size))
    ]
    weights = [random(part.shape[-1], 1, delta.taps) for part in channels]
    query, key, value = (delta_rules.convolve(part, weight, borders) for part, weight in zip(channels, weights, strict=True))
    query, key = (part.reshape(samples, tokens, keys, size) for part in (query, key))
    value = value.reshape(samples, tokens, values, delta.value_size)
    betas, log_rates = random(samples, tokens, values), random(values)
    if delta.decays_channels:
        rates = random(samples, tokens, values, size)
        outputs = delta_rules.kimi_delta(query, key, value, rates, betas, log_rates, random(values * size), borders)
    else:
        alphas, biases = random(samples, tokens, values), random(values)
        outputs = delta_rules.gated_delta(query, key, value, alphas, betas, log_rates, biases, False, borders, by_channel)
    torch.autograd.grad(outputs, (*channels, *weights), outputs)


def _try_gemm_epilogues(shapes: Shapes, chosen: Kernels, rank_device: torch.device) -> None:
    # A separate generator, so that the random state of the run does not change.
    generator = torch.Generator(rank_device)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=rank_device, generator=generator)

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
        offsets = torch.zeros(len(rows), device=rank_device)
        gemm_epilogues.exponential_gemm(rows, random(shapes.vocabulary, hidden), offsets)


def _try_grouped_gemms(rows: torch.Tensor, weight: torch.Tensor) -> None:
    borders = torch.tensor([0, 0, len(rows)], dtype=torch.int32, device=rows.device)
    gate_up, _ = grouped_gemm_epilogues.gated(rows, weight, torch.ones(len(rows), device=rows.device), borders)
    grouped_gemm_epilogues.times_transposed(rows, weight, borders)
    grouped_gemm_epilogues.times(gate_up, weight, borders)
    grouped_gemm_epilogues.weight_gradient(gate_up, rows, borders, weight, adds=False)
