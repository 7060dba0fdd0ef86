"""Optional packages are tried once, at the start, on every rank: one that fails is left out on all, and training goes on.

What pip can install need not work. flash-attn-4, quack and cutlass-dsl are compiled where they run: against another CUDA, from a
directory that nobody has tried, or with a compiler that is not there. Each then failed at the first step, as an internal error.
Here each computes one layer's part of a micro batch, forward and backward. What is compiled for that is what the first step would
have waited for.
"""

from collections.abc import Callable

import torch
from megatron.core import parallel_state

from lt_shared.console import warn
from lt_train.config import kernels
from lt_train.config.kernels import FLASH_ATTENTION_4, GROUPED_BY_QUACK, PEER_MEMORY, Failures, Kernels
from lt_train.config.optional_packages import FLASH_ATTENTION, QUACK, SYMMETRIC_MEMORY, Package
from lt_train.config.run_config import RunConfig
from lt_train.config.settings.layers import FUSED_LINEAR, GEMM_EPILOGUE
from lt_train.kernels import gemm_epilogues, grouped_gemm_epilogues
from lt_train.parallel import symmetric_memory
from lt_train.runtime import agreement, device

# What a step takes longer without the package: Llama 3 8B's width, 8 layers, 16,384 tokens on one H100, 2026-11-23.
COSTS = {
    FLASH_ATTENTION: "1.4 to 1.9% slower for Llama 3 8B on an H100",
    QUACK: "2.2 to 2.7% slower for Llama 3 8B on an H100",
    SYMMETRIC_MEMORY: "for which GEMMs wait",
}


def failures(config: RunConfig, chosen: Kernels, where: torch.device) -> Failures:
    """The packages of `chosen` that do not work on some rank, with the reason that the first such rank has. All ranks call it."""
    own = {}
    for package, trial in _trials(config, chosen, where).items():
        if reason := _failure(trial, where):
            own[package.distribution] = reason
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


def _trials(config: RunConfig, chosen: Kernels, where: torch.device) -> dict[Package, Callable[[], None]]:
    trials: dict[Package, Callable[[], None]] = {}
    if chosen.attention == FLASH_ATTENTION_4:
        trials[FLASH_ATTENTION] = lambda: _try_attention(config, where)
    if chosen.swiglu == GEMM_EPILOGUE or chosen.cross_entropy == FUSED_LINEAR or chosen.experts in GROUPED_BY_QUACK:
        trials[QUACK] = lambda: _try_gemm_epilogues(config, chosen, where)
    if chosen.collectives == PEER_MEMORY:
        trials[SYMMETRIC_MEMORY] = lambda: symmetric_memory.check(_sharing(config))
    return trials


def _sharing(config: RunConfig) -> torch.distributed.ProcessGroup:
    """The ranks that read each other's memory."""
    if not config.memory.fully_sharded:
        return parallel_state.get_tensor_model_parallel_group()  # type: ignore[no-any-return]
    is_part = config.memory.replicas > 1
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


def _try_attention(config: RunConfig, where: torch.device) -> None:
    """Of a sample as long as a rank's share: with context parallelism the kernels are the same ones, for more keys."""
    from lt_train.models import flash_attention

    model, tensor, batches = config.architecture, config.parallelism.tensor, config.batches
    dtype = torch.bfloat16 if config.precision.bf16 else torch.float16
    heads, groups = model.num_attention_heads // tensor, max(1, model.num_query_groups // tensor)
    shape = (batches.seq_length // config.parallelism.context, batches.micro_batch_size)
    value_size = model.value_size // model.num_attention_heads
    query, key, value = (
        torch.randn(*shape, count, size, dtype=dtype, device=where, requires_grad=True)
        for count, size in ((heads, model.kv_channels), (groups, model.kv_channels), (groups, value_size))
    )
    documents = None
    if config.data.reset_attention_mask:
        documents = torch.tensor([0, 1, shape[0]], dtype=torch.int32, device=where).repeat(shape[1], 1)
    attended = flash_attention.attend(query, key, value, None, model.sliding_window, None, documents)
    torch.autograd.grad(attended, (query, key, value), attended)


def _try_gemm_epilogues(config: RunConfig, chosen: Kernels, where: torch.device) -> None:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=where)

    tensor, hidden = config.parallelism.tensor, config.architecture.hidden_size
    inner = config.architecture.ffn_hidden_size // tensor
    rows = random(config.batches.micro_batch_size * config.batches.seq_length // config.parallelism.context, hidden)
    if chosen.swiglu == GEMM_EPILOGUE:
        gate_up, activation = random(len(rows), 2 * inner), random(len(rows), inner)
        gemm_epilogues.gated_gemm(rows, random(2 * inner, hidden), gate_up, activation)
        recomputed = activation if chosen.recomputes_swiglu else None
        gemm_epilogues.gated_gemm_gradient(rows, random(hidden, inner), gate_up, torch.empty_like(gate_up), recomputed)
    if chosen.experts in GROUPED_BY_QUACK:
        _try_grouped_gemms(rows, random(2, 2 * config.architecture.expert_size, hidden))
    if chosen.cross_entropy == FUSED_LINEAR:
        offsets = torch.zeros(len(rows), device=where)
        gemm_epilogues.exponential_gemm(rows, random(config.padded_vocab_size // tensor, hidden), offsets)


def _try_grouped_gemms(rows: torch.Tensor, weight: torch.Tensor) -> None:
    borders = torch.tensor([0, 0, len(rows)], dtype=torch.int32, device=rows.device)
    gate_up, _ = grouped_gemm_epilogues.gated(rows, weight, torch.ones(len(rows), device=rows.device), borders)
    grouped_gemm_epilogues.times_transposed(rows, weight, borders)
    grouped_gemm_epilogues.times(gate_up, weight, borders)
    grouped_gemm_epilogues.weight_gradient(gate_up, rows, borders, weight, adds=False)


def chosen(config: RunConfig, where: torch.device, is_first: bool) -> Kernels:
    """The choice that all ranks make, of what works on all of them."""
    capability = device.capability_of(where)
    found = kernels.choose(config, capability)
    failed = failures(config, found, where)
    if failed:
        found = kernels.choose(config, capability, failed)
    if is_first:
        report(failed, found, where)
    return found
