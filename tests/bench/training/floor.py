"""The floor of a step: its matrix products and its attention alone, at their shapes, each by the fastest way at hand.

A step cannot be faster than their sum, unless it computes something else. Each is repeated for SUSTAINED_SECONDS on random normal
data, because a GPU slows down under load and runs faster on zeros. Of the ways to lay the factors out the fastest counts, found
by short trials.
"""

import dataclasses
import functools
import importlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lt_shared.models.architecture import Architecture
from training.attention import attention
from training.contenders import is_importable
from training.workload import Workload, say

TRIAL_SECONDS, SUSTAINED_SECONDS = 0.04, 0.3
COPY_BYTES, SQUARE = 1 << 31, 8192
PARTS = 8
# A name, and what makes the function to be timed.
Way = tuple[str, Callable[[], Callable[[], Any]]]
LAYOUTS = ("row", "column")


@dataclasses.dataclass(frozen=True)
class Product:
    """`rows` x `inner` times `inner` x `columns`, `count` times in a step. `is_gradient` decides the types that fp8 has."""

    name: str
    rows: int
    inner: int
    columns: int
    count: int
    in_fp8: bool
    is_gradient: bool

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.inner * self.columns


def prepare(work: Workload) -> None:
    if is_importable("flash_attn.cute"):
        importlib.import_module("flash_attn.cute.interface")


def products(architecture: Architecture, tokens: int) -> list[Product]:
    """All matrix products of a step of `tokens` tokens in one micro batch; the head is not in fp8."""
    hidden, inner, layers = architecture.hidden_size, architecture.ffn_hidden_size, architecture.num_layers
    projections = architecture.query_size + 2 * architecture.kv_size
    sizes = [
        ("projections", hidden, projections, layers),
        ("attention output", architecture.query_size, hidden, layers),
        ("gate and up", hidden, 2 * inner, layers),
        ("down", inner, hidden, layers),
        ("head", hidden, architecture.vocab_size, 1),
    ]
    found = []
    for name, entering, leaving, count in sizes:
        in_fp8 = name != "head"
        found.append(Product(f"{name}, forward", tokens, entering, leaving, count, in_fp8, False))
        found.append(Product(f"{name}, input gradient", tokens, leaving, entering, count, in_fp8, True))
        found.append(Product(f"{name}, weight gradient", leaving, tokens, entering, count, in_fp8, True))
    return found


def ways(product: Product, fp8: bool, device: str) -> Iterator[Way]:
    """The product with its factors laid out in every way that the hardware takes."""
    if fp8 and product.in_fp8:
        # Only one layout exists: both factors with the summed dimension innermost.
        kinds = (torch.float8_e5m2 if product.is_gradient else torch.float8_e4m3fn, torch.float8_e4m3fn)
        left = torch.randn(product.rows, product.inner, device=device).to(kinds[0])
        right = torch.randn(product.columns, product.inner, device=device).to(kinds[1]).t()
        one = torch.ones((), device=device)
        options = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": not product.is_gradient}
        yield "fp8", lambda: functools.partial(torch._scaled_mm, left, right, **options)
        return
    lefts = {layout: _laid_out(product.rows, product.inner, layout, device) for layout in LAYOUTS}
    rights = {layout: _laid_out(product.inner, product.columns, layout, device) for layout in LAYOUTS}
    output = torch.empty(product.rows, product.columns, dtype=torch.bfloat16, device=device)
    for left_layout, right_layout in itertools.product(LAYOUTS, LAYOUTS):
        multiply = functools.partial(torch.mm, lefts[left_layout], rights[right_layout], out=output)
        yield f"{left_layout} x {right_layout}", lambda multiply=multiply: multiply  # type: ignore[misc]


def _laid_out(rows: int, columns: int, layout: str, device: str) -> Tensor:
    if layout == "row":
        return torch.randn(rows, columns, dtype=torch.bfloat16, device=device)
    return torch.randn(columns, rows, dtype=torch.bfloat16, device=device).t()


def seconds_of(function: Callable[[], Any], seconds: float, device: str) -> float:
    """The median time of one call among PARTS parts that take `seconds` in all."""
    if device != "cuda":
        started = time.perf_counter()
        function()
        return time.perf_counter() - started
    function()
    once = _timed(function, 2)
    repetitions = max(1, int(seconds / PARTS / once))
    return statistics.median(_timed(function, repetitions) for _ in range(PARTS))


def _timed(function: Callable[[], Any], repetitions: int) -> float:
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()  # type: ignore[no-untyped-call]
    for _ in range(repetitions):
        function()
    second.record()  # type: ignore[no-untyped-call]
    second.synchronize()
    return first.elapsed_time(second) / 1e3 / repetitions


def fastest(candidates: Iterator[Way], device: str) -> tuple[str, float]:
    """The name of the fastest way and its sustained seconds."""
    tried: list[tuple[float, str]] = []
    functions: dict[str, Callable[[], Any]] = {}
    for name, make in candidates:
        try:
            functions[name] = make()
            tried.append((seconds_of(functions[name], TRIAL_SECONDS, device), name))
        except Exception as error:  # Kernels that compile at run time raise whatever their compilers do.
            say(f"{name}: does not run here: {type(error).__name__} {str(error)[:120]!r}")
    best = min(tried)[1]
    return best, seconds_of(functions[best], SUSTAINED_SECONDS, device)


def attention_ways(work: Workload, backward: bool) -> Iterator[Way]:
    """Attention over the step's samples, forward alone or backward alone, with heads before or behind the tokens in memory."""
    names = ["cudnn", "flash", *(["flash4"] if is_importable("flash_attn.cute") else [])] if work.device == "cuda" else ["any"]
    for name in names:
        for layout in ("tokens first", "heads first"):
            if name == "flash4" and layout == "heads first":
                continue
            yield f"{name}, {layout}", functools.partial(_attend, work, name, layout, backward)


def _attend(work: Workload, name: str, layout: str, backward: bool) -> Callable[[], Any]:
    query, key, value = (tensor.requires_grad_() for tensor in _heads(work, layout))
    forward = functools.partial(attention(name), query, key, value)
    if not backward:
        return forward
    mixed = forward()
    return functools.partial(torch.autograd.grad, mixed, (query, key, value), torch.randn_like(mixed), retain_graph=True)


def _heads(work: Workload, layout: str) -> Iterator[Tensor]:
    sizes = work.architecture
    for heads in (sizes.num_attention_heads, sizes.num_query_groups, sizes.num_query_groups):
        shape = [work.shape.samples, work.shape.sequence_length, heads, sizes.kv_channels]
        if layout == "tokens first":
            yield torch.randn(shape, dtype=torch.bfloat16, device=work.device)
        else:
            shape[1], shape[2] = shape[2], shape[1]
            yield torch.randn(shape, dtype=torch.bfloat16, device=work.device).transpose(1, 2)


def measure(work: Workload) -> dict[str, Any]:
    """The floor in bf16 and, on a GPU with fp8, in fp8; seconds of a step, and a line for each part."""
    architecture, device = work.architecture, work.device
    torch.manual_seed(0)
    lines: list[dict[str, Any]] = []
    sums = {"bf16": 0.0, "fp8": 0.0}
    has_fp8 = device == "cuda" and torch.cuda.get_device_capability() >= (8, 9)
    for product in products(architecture, work.tokens_per_step):
        for precision in ("bf16", "fp8") if has_fp8 and product.in_fp8 else ("bf16",):
            way, seconds = fastest(ways(product, precision == "fp8", device), device)
            lines.append(_line(product.name, precision, way, seconds, product.count, product.flops))
            sums[precision] += seconds * product.count
            if not (has_fp8 and product.in_fp8):
                sums["fp8"] += seconds * product.count
    pairs = work.shape.sequence_length**2 / 2 * work.shape.samples
    forward_flops = 4 * pairs * architecture.query_size
    for name, backward, flops in (("forward", False, forward_flops), ("backward", True, 2.5 * forward_flops)):
        way, seconds = fastest(attention_ways(work, backward), device)
        lines.append(_line(f"attention, {name}", "bf16", way, seconds, architecture.num_layers, flops))
        for precision in sums:
            sums[precision] += seconds * architecture.num_layers
    found: dict[str, Any] = {"bf16_seconds": sums["bf16"], "fp8_seconds": sums["fp8"] if has_fp8 else None, "lines": lines}
    return found | ceilings(device)


def _line(name: str, precision: str, way: str, seconds: float, count: int, flops: float) -> dict[str, Any]:
    tflops = flops / seconds / 1e12
    say(f"{name}, {precision}: {count} x {seconds * 1e3:.3f} ms, {tflops:.0f} TFLOP/s ({way})")
    return {"name": name, "precision": precision, "way": way, "seconds": seconds, "count": count, "tflops": tflops}


def ceilings(device: str) -> dict[str, float]:
    """A square product's TFLOP/s in bf16 and a copy's TB/s, bytes read and written."""
    size = SQUARE if device == "cuda" else 256
    left, right = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    square = seconds_of(lambda: torch.mm(left, right), SUSTAINED_SECONDS, device)
    source = torch.randn((COPY_BYTES if device == "cuda" else 1 << 20) // 4, device=device)
    target = torch.empty_like(source)
    copy = seconds_of(lambda: target.copy_(source), SUSTAINED_SECONDS, device)
    return {"square_tflops": 2.0 * size**3 / square / 1e12, "copy_tb_per_second": 2 * source.nbytes / copy / 1e12}
