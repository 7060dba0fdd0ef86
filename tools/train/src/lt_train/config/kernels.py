"""Choose the implementation that computes each part of a training step.

Every part has a list of implementations, the fastest first. Each implementation has obstacles: properties of the model, the
precision, the parallel layout or the GPU that it does not support. `auto` takes the first implementation without an obstacle. An
explicit choice that has an obstacle is refused before training starts, with the obstacle as the reason. Nothing falls back later:
models, optimizer and fp8 use the choice of `choose`. The log's header, the `run.json` of every checkpoint and the JSON of
`lt-train bench` record it.

The GPU's compute capability is None without a driver, as on a login node. None is no obstacle, because the ranks choose again
when they start.
"""

import dataclasses
from collections.abc import Iterator, Mapping

from lt_shared.console import BadConfig, ToolError
from lt_shared.models.architecture import Architecture
from lt_train.config.kernel_obstacles import (
    IMPLEMENTATIONS,
    Capability,
    Obstacles,
    Run,
    delta_rule_obstacles,
    delta_state_obstacles,
    fp8_output_obstacles,
    gemm_epilogue_obstacles,
    grouped_expert_obstacles,
    grouped_fp8_obstacles,
    grouped_gemm_epilogue_obstacles,
    has_swiglu,
    overlap_obstacles,
    shared_shard_obstacles,
)
from lt_train.config.optional_packages import (
    FLASH_ATTENTION,
    FLASH_LINEAR_ATTENTION,
    QUACK,
    SYMMETRIC_MEMORY,
    Package,
    miscompiles_gated_delta,
)
from lt_train.config.settings.layers import (
    AUTO,
    FLASH,
    FUSED_LINEAR,
    GEMM_EPILOGUE,
    OUTSIDE_GEMMS,
    TORCH,
    TRITON,
    Layers,
)
from lt_train.config.settings.memory import SWIGLU, Memory
from lt_train.config.settings.precision import Precision
from lt_train.process import device

# The reason why an installed package does not work on this GPU.
Failures = Mapping[Package, str]
NONE_FAILED: Failures = {}

FLASH_ATTENTION_4 = "flash-attn-4"
FLASH_LINEAR = "flash-linear-attention"
# The package's kernels of Kimi Delta Attention, with equal decays in all channels.
FLASH_LINEAR_KIMI = "flash-linear-attention-kimi"
SDPA = "sdpa"
FLEX = "flex-attention"
GROUPED = "grouped"
GROUPED_GEMM_EPILOGUE = "grouped-gemm-epilogue"
GROUPED_FP8 = "grouped-fp8"
GROUPED_KINDS = (GROUPED, GROUPED_GEMM_EPILOGUE, GROUPED_FP8)
# Grouped experts that need quack's GEMMs.
GROUPED_BY_QUACK = (GROUPED_GEMM_EPILOGUE, GROUPED_FP8)
SEQUENTIAL = "sequential"
# Cross entropy fused with an output layer in fp8 (`lt_train.ops.fp8_linear_cross_entropy`).
FP8_LINEAR = "fp8-linear"
# The fp8 recipes that Triton's kernels cast for.
CAST_BY_KERNELS = ("tensorwise", "blockwise")
PEER_MEMORY = "symmetric-memory"

PARTS = ("architecture", "layers", "batches", "precision", "optimization", "parallelism", "memory", "data")


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The implementation chosen for every part.

    `attention` is "flash-attn-4", "sdpa" (PyTorch's, cuDNN first) or "flex-attention"; `swiglu` "gemm-epilogue", "triton" or
    "torch"; `cross_entropy` "fp8-linear", "fused-linear", "triton" or "torch"; `norm`, `rope` and `adamw` "triton" or "torch";
    `fp8_cast` "triton" or "torch", None without fp8; `experts` "grouped-fp8", "grouped-gemm-epilogue", "grouped" or "sequential",
    None without experts; `delta`, for layers of gated delta and of Kimi Delta Attention, "flash-linear-attention", its kernels of
    Kimi Delta Attention for both ("flash-linear-attention-kimi"), "triton" for the states, or "torch", None without such layers;
    `collectives` of tensor parallelism or FSDP "symmetric-memory", which overlaps them with GEMMs, or "torch", None without both.
    `recomputes_swiglu`: the backward pass computes SwiGLU again instead of keeping its output.
    """

    attention: str
    norm: str
    rope: str
    swiglu: str
    cross_entropy: str
    adamw: str
    fp8_cast: str | None
    experts: str | None
    collectives: str | None
    recomputes_swiglu: bool
    delta: str | None = None

    @property
    def groups_experts(self) -> bool:
        """Whether all experts of a layer are computed by grouped GEMMs of torch or quack."""
        return self.experts in GROUPED_KINDS

    def record(self) -> dict[str, str]:
        """Return the choice as stored in run.json and `bench --json`."""
        return {name: value for name, value in dataclasses.asdict(self).items() if isinstance(value, str)}

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.record().items())


def choose(run: Run, capability: Capability, failed: Failures = NONE_FAILED) -> Kernels:
    """Choose the fastest implementation for every part that has no obstacle and needs no `failed` package.

    Raises BadConfig for an explicit choice that has an obstacle or needs a failed package.
    """
    for problem in (*problems(run, capability), *_failed_choices(run, failed)):
        raise problem
    modules = run.memory.recomputed_modules
    return Kernels(
        attention=_attention(run, capability, failed),
        norm=_norm(run),
        rope=_rope(run),
        swiglu=_chosen("--swiglu-impl", run, capability, failed),
        cross_entropy=FP8_LINEAR if run.precision.fp8_output_proj else _chosen("--cross-entropy-impl", run, capability, failed),
        adamw=TRITON if fuses_adamw(run) else TORCH,
        fp8_cast=_fp8_cast(run),
        experts=_experts(run, capability, failed),
        collectives=_collectives(run, failed),
        # If the whole MLP is recomputed, SwiGLU is recomputed with it.
        recomputes_swiglu=SWIGLU in modules and "mlp" not in modules,
        delta=_delta(run, capability, failed),
    )


def problems_on(run: Run, capability: Capability) -> Iterator[ToolError]:
    """Yield the `problems` that depend on this GPU's compute capability."""
    anywhere = {str(problem) for problem in problems(run)}
    return (problem for problem in problems(run, capability) if str(problem) not in anywhere)


def problems(run: Run, capability: Capability = None) -> Iterator[ToolError]:
    """Yield BadConfig for every explicit choice that has an obstacle."""
    for option, wish in _wishes(run).items():
        obstacle = _obstacle(option, wish, run, capability)
        if obstacle:
            instead = _first(option, run, capability)
            yield BadConfig(f"{option} {wish} does not support {obstacle}", f"drop it: auto takes {instead} here")
    if run.precision.fp8_output_proj and (reason := _reason(fp8_output_obstacles(run))):
        yield BadConfig(f"--fp8-output-proj does not support {reason}", "drop it")
    if run.layers.grouped_experts and run.architecture.num_experts:
        reason = _reason(grouped_expert_obstacles(run))
        if reason:
            yield BadConfig(f"--moe-grouped-gemm does not support {reason}", "drop it")
    if _wants_overlap(run) and (reason := _reason(overlap_obstacles(run))):
        yield BadConfig(f"--tp-comm-overlap does not support {reason}", "drop it")
    if SWIGLU in run.memory.recomputed_modules and (reason := _recomputation_obstacle(run, capability)):
        yield BadConfig(
            f"--recompute-modules swiglu does not support {reason}: it is part of the GEMMs (--swiglu-impl {GEMM_EPILOGUE}) or of"
            " Triton's casts to fp8",
            f"recompute {'moe' if run.architecture.num_experts else 'mlp'} instead, which is more",
        )


def _failed_choices(run: Run, failed: Failures) -> Iterator[ToolError]:
    """Yield BadConfig for every explicit choice whose package does not work on this GPU."""
    needing = {f"{option} {wish}": IMPLEMENTATIONS[option].get(wish, (None,))[0] for option, wish in _wishes(run).items()}
    if SWIGLU in run.memory.recomputed_modules and run.precision.fp8_format is None:
        needing["--recompute-modules swiglu"] = QUACK
    if _wants_overlap(run):
        needing["--tp-comm-overlap"] = SYMMETRIC_MEMORY
    for choice, package in needing.items():
        if package is not None and package in failed:
            yield BadConfig(f"{choice}: {package} does not work here: {failed[package]}", "drop it, or mend the package")


def missing_packages(layers: Layers, memory: Memory, precision: Precision) -> Iterator[ToolError]:
    """Yield BadConfig for every explicit choice whose package is not installed here."""
    if layers.attention_backend == FLASH and (missing := FLASH_ATTENTION.missing()):
        yield _not_installed(FLASH_ATTENTION, missing, "pip install lt-train[flash], or use --attention-backend fused")
    wishes = {"--swiglu-impl": layers.swiglu_impl, "--cross-entropy-impl": layers.cross_entropy_impl}
    needing = [option for option, wish in wishes.items() if wish in (GEMM_EPILOGUE, FUSED_LINEAR)]
    if SWIGLU in memory.recomputed_modules and precision.fp8_format is None and layers.swiglu_impl == AUTO:
        needing.append("--recompute-modules swiglu")
    if needing and (missing := QUACK.missing()):
        yield _not_installed(QUACK, missing, f"pip install lt-train[flash], or drop {' and '.join(needing)}")


def _not_installed(package: Package, missing: str, remedy: str) -> BadConfig:
    reason = f": there is no module {missing}, which it imports" if missing == "cutlass" else ""
    return BadConfig(f"{package.name} is not installed" + reason, remedy)


def fuses_adamw(run: Run) -> bool:
    """Return whether `lt_train.optim.fused_adamw` updates the weights, with split fp32 master weights or on FSDP's shards."""
    return run.layers.triton and run.optimization.optimizer == "adam" and run.precision.bf16


def shares_shards(run: Run) -> bool:
    """Return whether FSDP's ranks on one node read each other's shards, from a copy in 16 bits."""
    return run.memory.fully_sharded and _reason(shared_shard_obstacles(run)) is None


def fuses_loss(run: Run) -> bool:
    """Return whether the loss needs no float32 copy of the logits. The memory estimate depends on this."""
    return bool(run.precision.fp8_output_proj) or _chosen("--cross-entropy-impl", run, None) != TORCH


def groups_experts(run: Run) -> bool:
    """Return whether grouped experts keep only the output of their first GEMM. The memory estimate depends on this."""
    return _experts(run, None, NONE_FAILED) in GROUPED_KINDS


def runs_experts_one_by_one(run: Run) -> bool:
    """Return whether a layer's experts are computed one after another, by kernels too small to fill a GPU."""
    return _experts(run, None, NONE_FAILED) == SEQUENTIAL


def exchanges_whole_tokens(run: Run) -> bool:
    """Return whether ranks send tokens once to all of the few ranks that share experts (`lt_train.parallel.token_exchange`)."""
    is_all_to_all = run.layers.token_dispatcher == "alltoall"
    return groups_experts(run) and is_all_to_all and 1 < run.parallelism.expert <= run.architecture.moe_router_topk


def _wishes(run: Run) -> dict[str, str]:
    return {
        "--attention-backend": run.layers.attention_backend,
        "--swiglu-impl": run.layers.swiglu_impl,
        "--cross-entropy-impl": run.layers.cross_entropy_impl,
    }


def _chosen(option: str, run: Run, capability: Capability, failed: Failures = NONE_FAILED) -> str:
    wish = _wishes(run)[option]
    return _first(option, run, capability, wish, failed) if wish in (AUTO, OUTSIDE_GEMMS) else wish


def _first(option: str, run: Run, capability: Capability, wish: str = AUTO, failed: Failures = NONE_FAILED) -> str:
    """Return the fastest installed implementation without an obstacle."""
    for name, (package, obstacles) in IMPLEMENTATIONS[option].items():
        is_skipped = wish == OUTSIDE_GEMMS and name in (GEMM_EPILOGUE, FUSED_LINEAR)
        is_there = package is None or (package not in failed and not package.missing())
        if not is_skipped and is_there and _reason(obstacles(run, capability)) is None:
            return name
    raise AssertionError(f"{option} has no implementation")


def _obstacle(option: str, wish: str, run: Run, capability: Capability) -> str | None:
    if wish in (AUTO, OUTSIDE_GEMMS):
        return None
    return _reason(IMPLEMENTATIONS[option][wish][1](run, capability))


def _reason(obstacles: Obstacles) -> str | None:
    return next((reason for reason, stands in obstacles.items() if stands), None)


def _attention(run: Run, capability: Capability, failed: Failures) -> str:
    """Choose FlexAttention for documents, windows, caps, sinks and context parallelism on GPUs, which SDPA does not support."""
    if _chosen("--attention-backend", run, capability, failed) == FLASH:
        return FLASH_ATTENTION_4
    window = run.architecture.sliding_window
    is_masked = run.data.reset_attention_mask or run.parallelism.context > 1
    is_masked = is_masked or (window is not None and window < run.batches.seq_length)
    is_masked = is_masked or run.architecture.attn_logit_softcapping is not None or run.architecture.attention_sinks
    return FLEX if is_masked and run.parallelism.device == device.CUDA else SDPA


def is_plain_rms_norm(model: Architecture) -> bool:
    """Return whether the norms are RMSNorm times the weight, not times the weight plus one."""
    return not model.has_layer_norm and not model.layernorm_zero_centered_gamma


def _norm(run: Run) -> str:
    """Choose the kernel for the layers' norms, fused with the preceding residual addition."""
    fits = is_plain_rms_norm(run.architecture) and run.architecture.norm_placement == "pre"
    fits = fits and not run.architecture.parallel_layers
    fits = fits and not run.layers.hidden_dropout and "mlp" not in run.memory.recomputed_modules
    return TRITON if run.layers.triton and fits else TORCH


def _rope(run: Run) -> str:
    """Choose the kernel for RoPE, fused with the split into queries, keys and values, and with the norms of single heads."""
    model = run.architecture
    fits = model.family == "llama" and model.rotary_channels == model.kv_channels
    if model.qk_layernorm_after_rope:
        # The kernel splits and rotates, without the magnitude that a scaling may have in front of the norms.
        fits = fits and model.rope_scaling is None
    elif model.qk_layernorm:
        fits = fits and model.qk_layernorm_width == "head" and is_plain_rms_norm(model)
    return TRITON if run.layers.triton and fits and model.latent_attention is None else TORCH


def _experts(run: Run, capability: Capability, failed: Failures) -> str | None:
    if run.architecture.num_experts is None:
        return None
    if _reason(grouped_expert_obstacles(run)):
        return SEQUENTIAL
    is_there = QUACK not in failed and not QUACK.missing()
    if not is_there or _reason(grouped_gemm_epilogue_obstacles(run, capability)):
        return GROUPED
    return GROUPED_GEMM_EPILOGUE if _reason(grouped_fp8_obstacles(run)) else GROUPED_FP8


def _delta(run: Run, capability: Capability, failed: Failures) -> str | None:
    delta = run.architecture.gated_delta
    if delta is None:
        return None
    is_there = FLASH_LINEAR_ATTENTION not in failed and not FLASH_LINEAR_ATTENTION.missing()
    if is_there and _reason(delta_rule_obstacles(run)) is None:
        return FLASH_LINEAR_KIMI if not delta.decays_channels and miscompiles_gated_delta(capability) else FLASH_LINEAR
    return TORCH if _reason(delta_state_obstacles(run)) else TRITON


def delta_kernel_hint(run: Run, capability: Capability) -> str:
    """Return how to get faster kernels for layers of gated delta; empty if there are none, or they could not compute the run."""
    if run.architecture.gated_delta is None or _reason(delta_rule_obstacles(run)):
        return ""
    if FLASH_LINEAR_ATTENTION.missing():
        return f"pip install {FLASH_LINEAR_ATTENTION.distribution} has faster kernels for gated delta"
    if _delta(run, capability, NONE_FAILED) == FLASH_LINEAR_KIMI:
        return "Triton before 3.7.1 miscompiles the kernels of gated delta on Hopper GPUs: install Triton 3.7.1 or tilelang"
    return ""


def has_delta_kernels(run: Run) -> bool:
    """Return whether flash-linear-attention computes layers of gated delta. The memory estimate depends on this."""
    return _delta(run, None, NONE_FAILED) == FLASH_LINEAR


def _wants_overlap(run: Run) -> bool:
    return run.parallelism.tensor_overlap is True


def _collectives(run: Run, failed: Failures) -> str | None:
    if run.parallelism.tensor == 1:
        if not run.memory.fully_sharded:
            return None
        return PEER_MEMORY if SYMMETRIC_MEMORY not in failed and shares_shards(run) else TORCH
    return PEER_MEMORY if SYMMETRIC_MEMORY not in failed and _reason(overlap_obstacles(run)) is None else TORCH


def _fp8_cast(run: Run) -> str | None:
    if run.precision.fp8_format is None:
        return None
    return TRITON if run.layers.triton and run.precision.fp8_recipe in CAST_BY_KERNELS else TORCH


def _recomputation_obstacle(run: Run, capability: Capability) -> str | None:
    wish = run.layers.swiglu_impl
    if run.precision.fp8_format is None:
        if wish not in (AUTO, GEMM_EPILOGUE):
            return f"--swiglu-impl {TRITON if wish == OUTSIDE_GEMMS else wish}"
        return _reason(gemm_epilogue_obstacles(run, capability))
    return _reason(
        {
            "--kernels torch": not run.layers.triton,
            f"--swiglu-impl {wish}": wish == TORCH,
            f"--fp8-recipe {run.precision.fp8_recipe}": run.precision.fp8_recipe not in CAST_BY_KERNELS,
            "a model without SwiGLU": not has_swiglu(run.architecture),
            "experts": run.architecture.num_experts is not None,
        }
    )
