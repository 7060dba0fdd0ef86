"""List the models, precisions, parallel layouts and GPUs that each implementation does not support.

`lt_train.config.kernels` chooses the implementations by these obstacles.
"""

from collections.abc import Mapping
from typing import Protocol

from lt_shared.models.architecture import Architecture
from lt_train.config.optional_packages import FLASH_ATTENTION, QUACK
from lt_train.config.settings.batches import Batches
from lt_train.config.settings.data import Data
from lt_train.config.settings.layers import (
    AUTO,
    FLASH,
    FUSED,
    FUSED_LINEAR,
    GEMM_EPILOGUE,
    TORCH,
    TRITON,
    Layers,
)
from lt_train.config.settings.memory import Memory
from lt_train.config.settings.optimization import Optimization
from lt_train.config.settings.parallelism import Parallelism
from lt_train.config.settings.precision import FP8_MULTIPLE, Precision
from lt_train.process import device

Capability = tuple[int, int] | None
# Obstacle names, and whether the run has the obstacle. The first obstacle that applies is reported. The GPU comes first because
# it changes least; the parallel layout comes last, so that a search over layouts finds the same reason in every layout.
Obstacles = Mapping[str, bool]
# The compute capability of H100 and H200. The CuTe kernels of `lt_train.kernels.gemm_epilogues` need it.
HOPPER = 9
# The kernels copy 128 bits at a time, which are 8 numbers of 16 bits.
ALIGNMENT = 8
# Columns of the smallest tile of the output layer's GEMM; padding columns of the vocabulary would count in the softmax.
VOCABULARY_TILE = 128
# With at least this many rows per expert, fp8 GEMMs are faster. Measured: 1,300 to 1,700 rows (tools/train/PERFORMANCE.md).
FP8_EXPERT_ROWS = 2048
FLASH_HEAD_SIZES = (64, 96, 128)
# Channels of a head's query and key, and of its value: DeepSeek's.
FLASH_LATENT_HEAD_SIZES = (192, 128)
# A key head of gated delta layers that flash-linear-attention's kernels can hold.
LARGEST_KEY_HEAD = 256
# The compute capabilities that flash-attn-4 compiles for, at least. Heads of latent attention need Hopper.
FLASH_CAPABILITY, FLASH_LATENT_CAPABILITY = (8, 0), (9, 0)


class Run(Protocol):
    """The parts of a `RunConfig` that decide the choice."""

    @property
    def architecture(self) -> Architecture: ...
    @property
    def layers(self) -> Layers: ...
    @property
    def batches(self) -> Batches: ...
    @property
    def precision(self) -> Precision: ...
    @property
    def optimization(self) -> Optimization: ...
    @property
    def parallelism(self) -> Parallelism: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def data(self) -> Data: ...


def _no_obstacles(run: Run, capability: Capability) -> Obstacles:
    return {}


def _not_hopper(capability: Capability) -> Obstacles:
    if capability is None or capability[0] == HOPPER:
        return {}
    return {f"this GPU: {device.capability_text(capability)}, {HOPPER}.0 is needed, a Hopper GPU": True}


def _not_triton(run: Run) -> Obstacles:
    is_gpu = run.parallelism.device == device.CUDA
    return {"--kernels torch" if is_gpu else f"--device {run.parallelism.device}": not run.layers.triton}


def has_swiglu(model: Architecture) -> bool:
    """Return whether the MLP has a SiLU gate, and neither biases nor factors, as the kernels require."""
    has_factors = model.side_by_side is not None and (model.side_by_side.mlp_gates, model.side_by_side.mlp_output) != (1, 1)
    return model.is_gated and model.activation == "silu" and not model.add_bias_linear and not has_factors


def gemm_epilogue_obstacles(run: Run, capability: Capability) -> Obstacles:
    model = run.architecture
    return {
        **_not_hopper(capability),
        f"--device {run.parallelism.device}": run.parallelism.device != device.CUDA,
        **_not_triton(run),
        "a model without SwiGLU": not has_swiglu(model),
        "norms behind the MLP": model.norm_placement != "pre",
        "experts": model.num_experts is not None,
        f"{run.precision.dtype}, only --bf16": not run.precision.bf16,
        "fp8": run.precision.fp8_format is not None,
        f"widths of a rank that are no multiples of {ALIGNMENT}": (
            model.hidden_size % ALIGNMENT + model.ffn_hidden_size % (ALIGNMENT * run.parallelism.tensor) > 0
        ),
    }


def _triton_swiglu_obstacles(run: Run, capability: Capability) -> Obstacles:
    return {
        **_not_triton(run),
        "a model without SwiGLU": not has_swiglu(run.architecture),
        "experts": run.architecture.num_experts is not None,
    }


def grouped_expert_obstacles(run: Run) -> Obstacles:
    model = run.architecture
    return {
        "a model whose experts have no SwiGLU": not (has_swiglu(model) or model.activation == "clamped_swiglu"),
        # Experts with biases are whole on each rank (`RunConfig.expert_tensor_parallel`).
        f"tensor parallel size {run.parallelism.tensor}": run.parallelism.tensor > 1 and not model.add_bias_linear,
    }


def grouped_gemm_epilogue_obstacles(run: Run, capability: Capability) -> Obstacles:
    model = run.architecture
    return {
        **_not_hopper(capability),
        f"--device {run.parallelism.device}": run.parallelism.device != device.CUDA,
        **_not_triton(run),
        f"{run.precision.dtype}, only --bf16": not run.precision.bf16,
        f"widths that are no multiples of {ALIGNMENT}": model.hidden_size % ALIGNMENT + model.expert_size % ALIGNMENT > 0,
    }


def grouped_fp8_obstacles(run: Run) -> Obstacles:
    """List obstacles to fp8 for experts that quack's grouped GEMMs support."""
    model = run.architecture
    tokens = run.batches.micro_batch_size * run.batches.seq_length // run.parallelism.context * run.parallelism.expert
    rows = tokens * model.moe_router_topk // (model.num_experts or 1)
    return {
        "16 bits": run.precision.fp8_format is None,
        f"widths that are no multiples of {FP8_MULTIPLE}": model.hidden_size % FP8_MULTIPLE + model.expert_size % FP8_MULTIPLE
        > 0,
        f"{rows} rows an expert, {FP8_EXPERT_ROWS} pay for the casts of its weights": rows < FP8_EXPERT_ROWS,
    }


def _fused_linear_obstacles(run: Run, capability: Capability) -> Obstacles:
    model = run.architecture
    rows = run.batches.micro_batch_size * run.batches.seq_length // run.parallelism.context
    return {
        **_not_hopper(capability),
        f"--device {run.parallelism.device}": run.parallelism.device != device.CUDA,
        **_not_triton(run),
        f"{run.precision.dtype}, only --bf16": not run.precision.bf16,
        "--z-loss-coeff, which needs the logits": run.optimization.z_loss_coeff > 0,
        "scaled or capped logits": model.logits_scaling != 1 or model.final_logit_softcapping is not None,
        f"a vocabulary of {model.vocab_size}, which is no multiple of {VOCABULARY_TILE}": model.vocab_size % VOCABULARY_TILE > 0,
        f"a hidden size that is no multiple of {ALIGNMENT}": model.hidden_size % ALIGNMENT > 0,
        f"{rows} tokens in a micro batch of a rank, no multiple of {ALIGNMENT}": rows % ALIGNMENT > 0,
        f"tensor parallel size {run.parallelism.tensor}, whose last rank has nothing but padding of the vocabulary": (
            _vocabulary_before_last_rank(model, run.parallelism.tensor) >= model.vocab_size
        ),
    }


def fp8_output_obstacles(run: Run) -> Obstacles:
    """List obstacles to the output layer in fp8 (`lt_train.ops.fp8_linear_cross_entropy`)."""
    model = run.architecture
    return {
        **_not_triton(run),
        f"--cross-entropy-impl {run.layers.cross_entropy_impl}": run.layers.cross_entropy_impl != AUTO,
        "--z-loss-coeff": run.optimization.z_loss_coeff > 0,
        "scaled or capped logits": model.logits_scaling != 1 or model.final_logit_softcapping is not None,
    }


def _vocabulary_before_last_rank(model: Architecture, ranks: int) -> int:
    return model.padded_vocab_size(VOCABULARY_TILE, ranks) // ranks * (ranks - 1)


def _triton_loss_obstacles(run: Run, capability: Capability) -> Obstacles:
    return _not_triton(run)


def overlap_obstacles(run: Run) -> Obstacles:
    """List obstacles to overlapping tensor-parallel collectives, run by copy engines, with GEMMs (`ops.peer_exchange`)."""
    return {
        "--no-tp-comm-overlap": run.parallelism.tensor_overlap is False,
        f"--device {run.parallelism.device}": run.parallelism.device != device.CUDA,
        **_not_triton(run),
        "layers without --sequence-parallel": not run.parallelism.sequence,
        f"{run.precision.dtype}, only --bf16 and --fp16": not run.precision.half,
        "--deterministic": run.precision.deterministic,
        "--use-torch-fsdp2": run.memory.fully_sharded,
        "latent attention": run.architecture.latent_attention is not None,
    }


def shared_shard_obstacles(run: Run) -> Obstacles:
    """List obstacles to running FSDP's collectives on copy engines (`lt_train.parallel.shard_gathering`)."""
    return {
        "--no-tp-comm-overlap": run.parallelism.tensor_overlap is False,
        **_not_triton(run),
        # After the kernels, because Triton's interpreter runs them on a CPU, too.
        f"--device {run.parallelism.device}": run.parallelism.device != device.CUDA,
        f"{run.precision.dtype}, only --bf16": not run.precision.bf16,
        f"--optimizer {run.optimization.optimizer}": run.optimization.optimizer != "adam",
        "one rank": run.parallelism.data * run.parallelism.context // run.memory.replicas == 1,
        "tensor parallelism": run.parallelism.tensor > 1,
    }


def _flash_obstacles(run: Run, capability: Capability) -> Obstacles:
    model = run.architecture
    latent = model.latent_attention
    least = FLASH_LATENT_CAPABILITY if latent else FLASH_CAPABILITY
    old = capability is not None and capability < least
    return {
        f"--device {run.parallelism.device}": run.parallelism.device != device.CUDA,
        "a soft cap of the scores": model.attn_logit_softcapping is not None,
        "sparse attention": model.sparse_attention is not None,
        **_flash_head_obstacles(model),
        f"{run.precision.dtype}, only --bf16 and --fp16": not run.precision.half,
        "--attention-dropout": run.layers.attention_dropout > 0,
        "--deterministic": run.precision.deterministic,
        f"this GPU: {device.capability_text(capability or least)}, {least[0]}.{least[1]} is needed": old,
    }


def _flash_head_obstacles(model: Architecture) -> Obstacles:
    if model.latent_attention is None:
        supported = ", ".join(map(str, FLASH_HEAD_SIZES))
        return {f"heads of {model.kv_channels}, only of {supported}": model.kv_channels not in FLASH_HEAD_SIZES}
    sizes = (model.kv_channels, model.latent_attention.v_head_dim)
    only = "only of {} and {}".format(*FLASH_LATENT_HEAD_SIZES)
    return {f"latent attention with heads of {sizes[0]} and {sizes[1]}, {only}": sizes != FLASH_LATENT_HEAD_SIZES}


def delta_state_obstacles(run: Run) -> Obstacles:
    """List obstacles to Triton's kernel for the states of gated delta (`lt_train.kernels.delta_states`)."""
    return _not_triton(run)


def delta_rule_obstacles(run: Run) -> Obstacles:
    """List obstacles to flash-linear-attention's kernels. In float32 they multiply in TF32."""
    delta = run.architecture.gated_delta
    key_size = delta.linear_key_head_dim if delta else 0
    return {
        f"--device {run.parallelism.device}": run.parallelism.device != device.CUDA,
        **_not_triton(run),
        f"{run.precision.dtype}, only --bf16 and --fp16": not run.precision.half,
        "--deterministic": run.precision.deterministic,
        f"key heads of {key_size}, at most {LARGEST_KEY_HEAD}": key_size > LARGEST_KEY_HEAD,
    }


# By option and name, the fastest first: the package that must be installed, and the obstacles.
IMPLEMENTATIONS = {
    "--attention-backend": {FLASH: (FLASH_ATTENTION, _flash_obstacles), FUSED: (None, _no_obstacles)},
    "--swiglu-impl": {
        GEMM_EPILOGUE: (QUACK, gemm_epilogue_obstacles),
        TRITON: (None, _triton_swiglu_obstacles),
        TORCH: (None, _no_obstacles),
    },
    "--cross-entropy-impl": {
        FUSED_LINEAR: (QUACK, _fused_linear_obstacles),
        TRITON: (None, _triton_loss_obstacles),
        TORCH: (None, _no_obstacles),
    },
}
