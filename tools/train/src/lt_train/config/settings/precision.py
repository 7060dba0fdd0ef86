"""The number formats of weights, activations and GEMMs, the scaling of the loss in fp16, and determinism."""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadConfig, ToolError, UsageError
from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import ATTENTION, LATENT_ATTENTION, NO_MIXER
from lt_train.config.settings.parallelism import Parallelism
from lt_train.kernels import FP8_BLOCK
from lt_train.process import device

FP8_FORMATS = ("e4m3", "hybrid")
FP8_RECIPES = ("tensorwise", "rowwise", "blockwise")
# The output layer's GEMMs in fp8: the two of the backward pass, or the logits, too.
GRADIENTS, ALL_GEMMS = "gradients", "all"
# TransformerEngine's recipe: the scale of a tensor follows from its largest values in earlier steps.
DELAYED = "delayed"
FP8_CAPABILITY = (8, 9)
BF16_CAPABILITY = (8, 0)
FP8_MULTIPLE = 16
# Hopper. cuBLASLt supports fp8 GEMMs with block scales on no other GPU.
BLOCKWISE_CAPABILITY = 9


# Subscripted, Choice would need click 8.2.
class _Recipe(click.Choice):  # type: ignore[type-arg]
    """Accept DELAYED as well, so that `check` can explain why it is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return DELAYED if value == DELAYED else super().convert(value, param, ctx)


OPTIONS = console.section(
    "Precision",
    click.option("--bf16", is_flag=True, help="Train in bfloat16; master weights are fp32."),
    click.option("--fp16", is_flag=True, help="Train in float16 with fp32 master weights and a scaled loss."),
    click.option(
        "--loss-scale",
        type=console.FiniteRange(min=0, min_open=True),
        help="Fix the loss scale; by default fp16 adjusts it during the run.",
    ),
    click.option(
        "--initial-loss-scale", type=console.FiniteRange(min=1), default=2.0**32, help="Set the first dynamic loss scale."
    ),
    click.option("--min-loss-scale", type=console.FiniteRange(min=1), default=1.0, help="Set the smallest dynamic loss scale."),
    click.option(
        "--loss-scale-window",
        type=click.IntRange(min=1),
        default=1000,
        help="Double the loss scale after this many finite steps.",
    ),
    click.option(
        "--hysteresis",
        type=click.IntRange(min=1),
        default=2,
        help="Halve the loss scale after this many steps with infinite gradients.",
    ),
    click.option("--fp8-format", type=click.Choice(FP8_FORMATS), help="Compute GEMMs in fp8; hybrid has e5m2 gradients."),
    click.option("--fp8-recipe", type=_Recipe(FP8_RECIPES), help="Select how tensors are scaled for fp8; by default tensorwise."),
    click.option(
        "--fp8-output-proj",
        type=click.Choice([GRADIENTS, ALL_GEMMS]),
        help="Compute the output layer in fp8: its gradients, or all of its GEMMs. By default it stays in 16 bits.",
    ),
    click.option(
        "--deterministic",
        "--deterministic-mode",
        "deterministic",
        is_flag=True,
        help="Compute the same results in every run on GPUs, too.",
    ),
)


@dataclasses.dataclass(frozen=True)
class Precision:
    """`dtype` is torch's name for the type of weights and activations; the optimizer's master weights are float32.

    If `loss_scale` is None, float16 scales the loss dynamically. If `fp8_format` is None, no GEMM is in fp8.
    `fp8_output_proj` is None if the output layer stays in 16 bits.
    """

    dtype: str
    loss_scale: float | None
    initial_loss_scale: float
    min_loss_scale: float
    loss_scale_window: int
    hysteresis: int
    fp8_format: str | None
    fp8_recipe: str
    deterministic: bool
    fp8_output_proj: str | None = None

    @property
    def bf16(self) -> bool:
        return self.dtype == "bfloat16"

    @property
    def fp16(self) -> bool:
        return self.dtype == "float16"

    @property
    def half(self) -> bool:
        """Whether weights have 16 bits, with a copy in 32 bits in the optimizer."""
        return self.dtype != "float32"

    def scale_falls(self, loss_scale: float) -> bool:
        """Return whether a step with infinite gradients can still lower the loss scale."""
        return self.fp16 and self.loss_scale is None and loss_scale > self.min_loss_scale


def resolve_precision(options: dict[str, Any]) -> Precision:
    if options["bf16"] and options["fp16"]:
        raise UsageError("both --bf16 and --fp16", "give one of them")
    if options["fp8_recipe"] and not options["fp8_format"]:
        raise UsageError("--fp8-recipe without --fp8-format: no GEMM would be in fp8", "add --fp8-format hybrid, or drop it")
    if options["fp8_output_proj"] and not options["fp8_format"]:
        raise UsageError("--fp8-output-proj without --fp8-format", "add --fp8-format hybrid, or drop it")
    return Precision(
        dtype="bfloat16" if options["bf16"] else "float16" if options["fp16"] else "float32",
        loss_scale=options["loss_scale"],
        initial_loss_scale=options["initial_loss_scale"],
        min_loss_scale=options["min_loss_scale"],
        loss_scale_window=options["loss_scale_window"],
        hysteresis=options["hysteresis"],
        fp8_format=options["fp8_format"],
        fp8_recipe=options["fp8_recipe"] or "tensorwise",
        deterministic=options["deterministic"],
        fp8_output_proj=options["fp8_output_proj"],
    )


def check(
    precision: Precision, architecture: Architecture, parallelism: Parallelism, micro_batch_tokens: int
) -> Iterator[ToolError]:
    """Yield BadConfig for contradictory numbers and for formats that the device or the layers cannot compute."""
    if precision.loss_scale and not precision.fp16:
        yield BadConfig(f"a loss scale for weights in {precision.dtype}", "loss scaling is for --fp16")
    if precision.min_loss_scale > precision.initial_loss_scale:
        yield BadConfig(
            f"smallest loss scale {precision.min_loss_scale} above the first one {precision.initial_loss_scale}",
            "lower --min-loss-scale",
        )
    if precision.deterministic and parallelism.device == device.CUDA:
        yield from _check_deterministic(precision)
    if precision.fp8_format:
        yield from _check_fp8(precision, architecture, parallelism, micro_batch_tokens)


def check_capability(capability: tuple[int, int], precision: Precision) -> Iterator[ToolError]:
    """Yield BadConfig for number formats that a GPU of this compute capability cannot compute."""
    has = device.capability_text(capability)
    if precision.fp8_format and capability < FP8_CAPABILITY:
        yield BadConfig(
            f"this GPU cannot multiply in fp8: {has}, 8.9 is needed", "drop --fp8-format, or use Ada, Hopper or later"
        )
    elif precision.fp8_format and precision.fp8_recipe == "blockwise" and capability[0] != BLOCKWISE_CAPABILITY:
        yield BadConfig(f"this GPU has no fp8 recipe blockwise: {has}, 9.0 is needed, Hopper's", "use --fp8-recipe tensorwise")
    if precision.bf16 and capability < BF16_CAPABILITY:
        yield BadConfig(f"this GPU cannot multiply in bfloat16: {has}, 8.0 is needed", "use --fp16, or Ampere or later")


def _check_deterministic(precision: Precision) -> Iterator[ToolError]:
    if not precision.half:
        yield BadConfig("fp32 attention has no deterministic backward pass on a GPU", "add --bf16, or drop --deterministic")
    algorithm = os.environ.get("NCCL_ALGO")
    if algorithm is not None and algorithm not in device.DETERMINISTIC_COLLECTIVES:
        allowed = ", ".join(device.DETERMINISTIC_COLLECTIVES)
        yield BadConfig(f"NCCL_ALGO={algorithm} may sum in another order each time", f"unset it, or use one of {allowed}")


def _check_fp8(
    precision: Precision, architecture: Architecture, parallelism: Parallelism, micro_batch_tokens: int
) -> Iterator[ToolError]:
    if not precision.bf16:
        yield BadConfig(f"fp8 GEMMs of weights in {precision.dtype}", "add --bf16")
    if parallelism.device != device.CUDA:
        yield BadConfig(f"fp8 needs a GPU, this run is on {parallelism.device}", "drop --fp8-format")
    if precision.fp8_recipe == DELAYED:
        yield BadConfig(
            "--fp8-recipe delayed: scales of earlier steps are TransformerEngine's, whose layers lt-train does not have",
            "use --fp8-recipe tensorwise, which is as fast",
        )
    for kind in architecture.mixers:
        if kind not in (ATTENTION, LATENT_ATTENTION, NO_MIXER):
            words = kind.replace("_", " ")
            yield BadConfig(f"fp8 in the {words} layers of {architecture.name} is not supported", "drop --fp8-format")
    ways = parallelism.tensor
    sizes = {
        "hidden size": architecture.hidden_size,
        "feed-forward size per rank": architecture.ffn_hidden_size // ways,
        "size of the shared expert per rank": (architecture.moe_shared_expert_intermediate_size or 0) // ways,
        "queries per rank": architecture.num_attention_heads * architecture.kv_channels // ways,
        "keys per rank": architecture.num_query_groups * architecture.kv_channels // ways,
        "tokens in a micro batch per rank": micro_batch_tokens // parallelism.context,
    }
    is_blockwise = precision.fp8_recipe == "blockwise"
    multiple, remedy = (FP8_BLOCK, "use --fp8-recipe tensorwise") if is_blockwise else (FP8_MULTIPLE, "drop --fp8-format")
    for name, size in sizes.items():
        if size % multiple:
            yield BadConfig(f"{name} {size} is not a multiple of {multiple}, as fp8 GEMMs need", remedy)
