"""How the layers are computed: by TransformerEngine or by PyTorch, with what dropout, and how tokens reach their experts.

The checkpoints of both implementations have the same tensors: a run may change from one to the other.
"""

import dataclasses
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import click

from lt_shared import console
from lt_shared.architecture import Architecture
from lt_shared.console import BadConfig, ToolError, note
from lt_train.config.settings.parallelism import Parallelism
from lt_train.runtime import device

TRANSFORMER_ENGINE = "te"
TORCH = "torch"
TRITON = "triton"
# Megatron's names of FlashAttention and of cuDNN's attention.
FLASH = "flash"
FUSED = "fused"
PRODUCTS = "products"
KERNEL = "kernel"
# Megatron's names of the same two.
ALIASES = {"transformer_engine": TRANSFORMER_ENGINE, "local": TORCH}
# Options of several subjects. Otherwise PyTorch's layers are the faster ones on a Hopper GPU: 1.02 times in bf16, as fast in fp8.
OF_TRANSFORMER_ENGINE = ("moe_grouped_gemm", "tp_comm_overlap", "cpu_offloading_num_layers")
WITHOUT_EFFECT = {
    "use_mcore_models": "models are megatron-core's in any case",
    "use_flash_attn": "attention is a fused kernel in any case",
    "no_masked_softmax_fusion": "attention has no separate softmax",
    "no_rope_fusion": "it would change no result",
    "group_query_attention": "--num-query-groups says it",
    "no_position_embedding": "rotary positions need no table",
}

OPTIONS = console.section(
    "Layers",
    click.option(
        "--transformer-impl",
        type=click.Choice(["auto", TRANSFORMER_ENGINE, TORCH, *ALIASES]),
        default="auto",
        help="TransformerEngine or PyTorch; auto takes PyTorch, and TransformerEngine for options that only it has.",
    ),
    click.option(
        "--kernels",
        type=click.Choice(["auto", TRITON, TORCH]),
        default="auto",
        help="Norms, rotation, SwiGLU, loss and AdamW by Triton's kernels or by PyTorch; auto takes Triton's on GPUs."
        " TransformerEngine's layers keep their own norms.",
    ),
    click.option(
        "--attention-backend",
        type=click.Choice(["auto", FLASH, FUSED]),
        default="auto",
        help="Attention on GPUs: flash-attn-4, or cuDNN and what TransformerEngine chooses; auto takes flash-attn-4 where it is"
        " installed. Ranks that share a sequence use neither.",
    ),
    click.option(
        "--swiglu-in",
        type=click.Choice(["auto", PRODUCTS, KERNEL]),
        default="auto",
        help="SwiGLU beside Triton's kernels: inside the matrix products, by quack, on Hopper GPUs in bf16, or in a kernel of its"
        " own; auto takes products where quack is installed.",
    ),
    click.option(
        "--loss-in",
        type=click.Choice(["auto", PRODUCTS, KERNEL]),
        default="auto",
        help="The loss beside Triton's kernels: inside the output layer's product, by quack, or in a kernel of its own; auto"
        " takes products where quack is installed. They need a Hopper GPU, bf16, tensor parallel size 1 and a vocabulary that is"
        " a multiple of 128, and neither the z-loss nor FSDP2; elsewhere the kernel stays.",
    ),
    click.option(
        "--hidden-dropout", type=console.FiniteRange(0, 1, max_open=True), default=0.0, help="Dropout of layer outputs."
    ),
    click.option("--attention-dropout", type=console.FiniteRange(0, 1, max_open=True), default=0.0, help="Dropout of attention."),
    click.option(
        "--moe-token-dispatcher-type",
        type=click.Choice(["alltoall", "allgather"]),
        default="alltoall",
        help="How tokens reach experts on other ranks.",
    ),
    click.option("--moe-grouped-gemm", is_flag=True, help="All experts in one product; needs TransformerEngine."),
    *(
        click.option(f"--{name.replace('_', '-')}", is_flag=True, help=f"No effect: {reason}.")
        for name, reason in WITHOUT_EFFECT.items()
    ),
)


@dataclasses.dataclass(frozen=True)
class Layers:
    """`implementation` is "te" or "torch", `kernels` "triton" or "torch", `attention` "flash" or "fused", `swiglu_in` and
    `loss_in` "products" or "kernel"; dropouts are probabilities."""

    implementation: str
    kernels: str
    attention: str
    swiglu_in: str
    loss_in: str
    hidden_dropout: float
    attention_dropout: float
    token_dispatcher: str
    grouped_experts: bool

    @property
    def transformer_engine(self) -> bool:
        return self.implementation == TRANSFORMER_ENGINE

    @property
    def triton(self) -> bool:
        return self.kernels == TRITON

    @property
    def options_for_quack(self) -> list[str]:
        """Those by which products were chosen that only quack has."""
        chosen = {"--swiglu-in": self.swiglu_in, "--loss-in": self.loss_in}
        return [option for option, place in chosen.items() if place == PRODUCTS]

    @property
    def dropout(self) -> bool:
        return self.hidden_dropout > 0 or self.attention_dropout > 0


def resolve(options: dict[str, Any], where: str) -> Layers:
    """`where` is a resolved device. Says which of Megatron's flags change nothing."""
    idle = [f"--{name.replace('_', '-')}" for name in WITHOUT_EFFECT if options[name]]
    if idle:
        note(f"without effect here: {', '.join(idle)}")
    asked = ALIASES.get(options["transformer_impl"], options["transformer_impl"])
    if asked == "auto":
        is_needed = any(options.get(name) for name in OF_TRANSFORMER_ENGINE)
        is_needed |= options.get("fp8_format") is not None and options.get("fp8_recipe") == "delayed"
        asked = TRANSFORMER_ENGINE if is_needed and where == device.CUDA else TORCH
    kernels, attention = options["kernels"], options["attention_backend"]
    if kernels == "auto":
        kernels = TRITON if where == device.CUDA else TORCH
    if attention == "auto":
        attention = FLASH if where == device.CUDA and _is_installed("flash_attn.cute") else FUSED
    has_products = kernels == TRITON and where == device.CUDA and _is_installed("quack")
    swiglu_in, loss_in = options["swiglu_in"], options["loss_in"]
    if swiglu_in == "auto":
        swiglu_in = PRODUCTS if has_products and asked == TORCH else KERNEL
    if loss_in == "auto":
        loss_in = PRODUCTS if has_products else KERNEL
    return Layers(
        implementation=asked,
        kernels=kernels,
        attention=attention,
        swiglu_in=swiglu_in,
        loss_in=loss_in,
        hidden_dropout=options["hidden_dropout"],
        attention_dropout=options["attention_dropout"],
        token_dispatcher=options["moe_token_dispatcher_type"],
        grouped_experts=options["moe_grouped_gemm"],
    )


def _has_transformer_engine() -> bool:
    return _is_installed("transformer_engine")


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def missing_packages(layers: Layers) -> Iterator[ToolError]:
    """Yields BadConfig for an implementation that is not installed here."""
    if layers.transformer_engine and not _has_transformer_engine():
        yield BadConfig("TransformerEngine is not installed", "pip install transformer-engine[pytorch], or use torch layers")
    if layers.attention == FLASH and not _is_installed("flash_attn.cute"):
        yield BadConfig("flash-attn-4 is not installed", "pip install lt-train[flash], or use --attention-backend fused")
    if layers.options_for_quack and not _is_installed("quack"):
        instead = " ".join(f"{option} kernel" for option in layers.options_for_quack)
        yield BadConfig("quack is not installed", f"pip install lt-train[flash], or use {instead}")


def check(
    layers: Layers, architecture: Architecture, parallelism: Parallelism, seq_length: int, documents: bool
) -> Iterator[ToolError]:
    """Yields BadConfig for what the chosen implementation cannot compute."""
    if layers.transformer_engine:
        if parallelism.device != device.CUDA:
            yield BadConfig(f"TransformerEngine does not run on {parallelism.device}", "use --transformer-impl torch")
    elif layers.grouped_experts:
        yield BadConfig("grouped experts need TransformerEngine", "drop --moe-grouped-gemm: experts then run one after another")
    if layers.swiglu_in == PRODUCTS and layers.transformer_engine:
        yield BadConfig("--swiglu-in products is for torch layers", "drop it, or use --transformer-impl torch")
    for option in layers.options_for_quack:
        if parallelism.device != device.CUDA:
            yield BadConfig(f"{option} products does not run on {parallelism.device}", "drop it")
        elif not layers.triton:
            yield BadConfig(f"{option} products is for --kernels triton", "drop it, or add --kernels triton")
    if layers.triton and parallelism.device != device.CUDA and not os.environ.get("TRITON_INTERPRET"):
        yield BadConfig(f"Triton's kernels do not run on {parallelism.device}", "drop --kernels triton")
    windowed = architecture.sliding_window is not None and seq_length > architecture.sliding_window
    shared = parallelism.context > 1 and not layers.transformer_engine
    if layers.attention_dropout and (windowed or documents or shared) and parallelism.device == device.CUDA:
        yield BadConfig(
            "attention dropout works neither within a sliding window, nor within documents, nor with context parallelism",
            "drop --attention-dropout",
        )
    if parallelism.tensor_overlap and not layers.transformer_engine:
        yield BadConfig("--tp-comm-overlap needs TransformerEngine's layers", "drop it, or use --transformer-impl te")
    if architecture.num_experts:
        yield from _check_experts(architecture.num_experts, parallelism, layers.token_dispatcher)
    elif parallelism.expert > 1:
        yield BadConfig(f"expert parallel size {parallelism.expert} for a model without experts", "give --num-experts")


def _check_experts(experts: int, parallelism: Parallelism, dispatcher: str) -> Iterator[ToolError]:
    if experts % parallelism.expert:
        yield BadConfig(f"{experts} experts not divisible by expert parallel size {parallelism.expert}")
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
    if dispatcher == "alltoall" and parallelism.expert > 1 and parallelism.tensor > 1 and parallelism.device == device.CPU:
        yield BadConfig(
            "tensor-parallel ranks get different numbers of tokens for their experts, and gloo gathers only equal parts",
            "add --moe-token-dispatcher-type allgather",
        )
