"""How layers are computed: the kernels, the dropout, and the exchange of tokens between experts."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError, note
from lt_shared.models.architecture import Architecture
from lt_train.config.settings.parallelism import Parallelism
from lt_train.process import device

AUTO = "auto"
TORCH = "torch"
TRITON = "triton"
# Megatron's names of FlashAttention and of cuDNN's attention.
FLASH = "flash"
FUSED = "fused"
# quack's CuTe kernels compute the operation after a GEMM on its tiles before they leave the chip.
GEMM_EPILOGUE = "gemm-epilogue"
FUSED_LINEAR = "fused-linear"
# Values of --transformer-impl that selected TransformerEngine's layers, which lt-train no longer has.
OF_TRANSFORMER_ENGINE = ("te", "transformer_engine")
IMPLEMENTATIONS = (AUTO, TORCH, "local", *OF_TRANSFORMER_ENGINE)
# Earlier spellings. `kernel` is the fastest implementation that is not part of a GEMM.
OUTSIDE_GEMMS = "kernel"
EARLIER = {"products": {"swiglu_impl": GEMM_EPILOGUE, "cross_entropy_impl": FUSED_LINEAR}}
EARLIER_OPTIONS = {"swiglu_in": "swiglu_impl", "loss_in": "cross_entropy_impl"}
WITHOUT_EFFECT = {
    "use_mcore_models": "models are megatron-core's in any case",
    "use_flash_attn": "attention is a fused kernel in any case",
    "no_masked_softmax_fusion": "attention has no separate softmax",
    "no_rope_fusion": "it would change no result",
    "group_query_attention": "--num-query-groups says it",
    "no_position_embedding": "RoPE needs no table",
    "moe_pad_expert_input_to_capacity": "padded rows would change no result",
}

# The one table of --help and of the reference for the options that choose an implementation. Each help says when to set it.
# --transformer-impl is hidden: lt-train's layers compute every run, so it chooses nothing.
_IMPLEMENTATION_OPTIONS = console.section(
    "Implementations",
    click.option(
        "--transformer-impl",
        type=click.Choice(IMPLEMENTATIONS),
        default=AUTO,
        hidden=True,
    ),
    click.option(
        "--kernels",
        type=click.Choice([AUTO, TRITON, TORCH]),
        default=AUTO,
        help="Compute norms, RoPE, SwiGLU, cross entropy and AdamW by Triton or by PyTorch. auto: Triton on GPUs. Set torch if"
        " a Triton kernel fails, or to compare its results with PyTorch's.",
    ),
    click.option(
        "--attention-backend",
        type=click.Choice([AUTO, FLASH, FUSED]),
        default=AUTO,
        help="Compute attention on GPUs by flash-attn-4 (flash), or by PyTorch's SDPA, cuDNN first, or FlexAttention (fused)."
        " auto: flash if it is installed and supports the run. Set fused if flash-attn-4 fails; set flash to require it.",
    ),
    click.option(
        "--swiglu-impl",
        type=click.Choice([AUTO, GEMM_EPILOGUE, TRITON, TORCH]),
        default=AUTO,
        help="Compute SwiGLU in the epilogue of the MLP's GEMMs (quack; Hopper, bf16), in a Triton kernel, or by PyTorch. auto:"
        " the first that is installed and supports the run. Set triton if quack fails; set gemm-epilogue to require quack.",
    ),
    click.option(
        "--cross-entropy-impl",
        type=click.Choice([AUTO, FUSED_LINEAR, TRITON, TORCH]),
        default=AUTO,
        help="Compute the loss fused with the output layer's GEMM (quack; Hopper, bf16, a vocabulary that is a multiple of 128,"
        " no z-loss), in a Triton kernel, or by megatron-core. auto: the first that is installed and supports the run. Set"
        " triton if quack fails, or if losses above 126 nats per token are expected; set fused-linear to require quack.",
    ),
    *(
        click.option(f"--{name.replace('_', '-')}", type=click.Choice([AUTO, *EARLIER, OUTSIDE_GEMMS]), hidden=True)
        for name in EARLIER_OPTIONS
    ),
)
_LAYER_OPTIONS = console.section(
    "Layers",
    click.option(
        "--hidden-dropout",
        type=console.FiniteRange(0, 1, max_open=True),
        default=0.0,
        help="Set the dropout probability of layer outputs.",
    ),
    click.option(
        "--attention-dropout",
        type=console.FiniteRange(0, 1, max_open=True),
        default=0.0,
        help="Set the dropout probability of attention.",
    ),
    click.option(
        "--moe-token-dispatcher-type",
        type=click.Choice(["alltoall", "allgather"]),
        default="alltoall",
        help="Select the collective that sends tokens to experts on other ranks.",
    ),
    click.option(
        "--moe-grouped-gemm",
        is_flag=True,
        help="Require grouped GEMMs for a layer's experts. Without it, they are used if the run allows them.",
    ),
    *(
        click.option(f"--{name.replace('_', '-')}", is_flag=True, hidden=True, help=f"No effect: {reason}.")
        for name, reason in WITHOUT_EFFECT.items()
    ),
)


def OPTIONS(function: Callable[..., Any]) -> Any:  # noqa: N802 (every settings module names its decorator OPTIONS)
    """Add the options of this module to a click command."""
    return _IMPLEMENTATION_OPTIONS(_LAYER_OPTIONS(function))


@dataclasses.dataclass(frozen=True)
class Layers:
    """`kernels` is "triton" or "torch"; dropouts are probabilities.

    `attention_backend`, `swiglu_impl` and `cross_entropy_impl` are as requested; `lt_train.config.kernels` resolves "auto".
    """

    kernels: str
    attention_backend: str
    swiglu_impl: str
    cross_entropy_impl: str
    hidden_dropout: float
    attention_dropout: float
    token_dispatcher: str
    grouped_experts: bool

    @property
    def triton(self) -> bool:
        return self.kernels == TRITON

    @property
    def dropout(self) -> bool:
        return self.hidden_dropout > 0 or self.attention_dropout > 0


def resolve_layers(options: dict[str, Any], device_type: str) -> Layers:
    """Resolve the layer options for a device, and print a note about options without effect."""
    idle = [f"--{name.replace('_', '-')}" for name in WITHOUT_EFFECT if options[name]]
    if idle:
        note(f"without effect here: {', '.join(idle)}")
    if options["transformer_impl"] in OF_TRANSFORMER_ENGINE:
        note(
            f"--transformer-impl {options['transformer_impl']} has no effect: lt-train's layers compute the run, with the"
            " same weights"
        )
    kernels = options["kernels"]
    if kernels == AUTO:
        kernels = TRITON if device_type == device.CUDA else TORCH
    return Layers(
        kernels=kernels,
        attention_backend=options["attention_backend"],
        hidden_dropout=options["hidden_dropout"],
        attention_dropout=options["attention_dropout"],
        token_dispatcher=options["moe_token_dispatcher_type"],
        grouped_experts=options["moe_grouped_gemm"],
        **{name: _read_either_spelling(options, earlier, name) for earlier, name in EARLIER_OPTIONS.items()},
    )


def _read_either_spelling(options: dict[str, Any], earlier: str, name: str) -> str:
    value = options[earlier]
    if value is None:
        return str(options[name])
    if options[name] != AUTO:
        old, new = (f"--{option.replace('_', '-')}" for option in (earlier, name))
        note(f"{old} {value} is ignored: it is an earlier spelling of {new}, which is {options[name]}")
        return str(options[name])
    return EARLIER.get(value, {}).get(name, str(value))


def without_model_sizes(layers: Layers) -> Layers:
    """Return `layers` without explicit implementations, which some models do not support."""
    return dataclasses.replace(layers, attention_backend=AUTO, swiglu_impl=AUTO, cross_entropy_impl=AUTO)


def check(
    layers: Layers, architecture: Architecture, parallelism: Parallelism, seq_length: int, documents: bool
) -> Iterator[ToolError]:
    """Yield BadConfig for settings that the layers cannot compute."""
    if layers.triton and parallelism.device != device.CUDA and not os.environ.get("TRITON_INTERPRET"):
        yield BadConfig(f"Triton's kernels do not run on {parallelism.device}", "drop --kernels triton")
    windowed = architecture.sliding_window is not None and seq_length > architecture.sliding_window
    masked = windowed or documents or parallelism.context > 1
    masked |= architecture.attn_logit_softcapping is not None or architecture.attention_sinks
    if layers.attention_dropout and architecture.sparse_attention:
        yield BadConfig(f"attention dropout in the sparse attention of {architecture.name}", "drop --attention-dropout")
    if layers.attention_dropout and masked and parallelism.device == device.CUDA:
        yield BadConfig(
            "attention dropout works neither with sinks, windows, documents or a soft cap, nor with context parallelism",
            "drop --attention-dropout",
        )
    if architecture.num_experts and architecture.norm_placement != "pre":
        yield BadConfig(f"{architecture.name} has experts and norms behind its layers, which no model known here has")
    if architecture.num_experts:
        yield from _check_experts(architecture, architecture.num_experts, parallelism, layers.token_dispatcher)
    elif parallelism.expert > 1:
        yield BadConfig(f"expert parallel size {parallelism.expert} for a model without experts", "give --num-experts")


def _check_experts(model: Architecture, experts: int, parallelism: Parallelism, dispatcher: str) -> Iterator[ToolError]:
    if experts % parallelism.expert:
        yield BadConfig(
            f"{experts} experts not divisible by expert parallel size {parallelism.expert}", "choose a size that divides them"
        )
    ranks = parallelism.data * parallelism.context
    if ranks % parallelism.expert:
        yield BadConfig(
            f"expert parallel size {parallelism.expert} does not divide the {ranks} ranks that read different tokens",
            "start more ranks, or lower --expert-model-parallel-size",
        )
    if parallelism.tensor > 1 and not parallelism.sequence:
        yield BadConfig(
            "experts with tensor parallelism need sequence parallelism: without it every rank would send the same tokens",
            "add --sequence-parallel",
        )
    # Experts with biases are whole on each tensor-parallel rank.
    is_split = parallelism.tensor > 1 and not model.add_bias_linear
    if dispatcher == "alltoall" and parallelism.expert > 1 and is_split and parallelism.device == device.CPU:
        yield BadConfig(
            "tensor-parallel ranks get different numbers of tokens for their experts, and gloo gathers only equal parts",
            "add --moe-token-dispatcher-type allgather",
        )
