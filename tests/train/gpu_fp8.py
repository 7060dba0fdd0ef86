"""fp8 products and casts on a Hopper GPU beside float64: `python tests/train/gpu_fp8.py`.

Not a part of the test session, which runs without a GPU. First the casts of the kernels beside those by the formula. Then the
three products of a linear layer with scales for blocks, and those of experts with scales for rows, beside the float64 product of
the numbers that their operands stand for; among the sizes are lines of scales that are no multiple of four, experts without rows
and borders that are no multiples of 16. Then the times of both at the sizes of Llama 3 8B, Qwen3-30B-A3B and Mixtral 8x7B, beside
tensorwise fp8 and bf16. Prints a table, FLOPs and bytes by the second; fails when an error is above its tolerance.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from lt_train.kernels import fp8_rows
from lt_train.ops import fp8_casts
from lt_train.ops.fp8_casts import Casts
from lt_train.ops.fp8_gemm import Cast, dequantize
from lt_train.ops.fp8_grouped_gemm import Fp8GroupedGemms
from lt_train.ops.grouped_gemm import GroupedGemms, QuackGroupedGemms, TorchGroupedGemms

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
# A product is rounded to bf16, and tensor cores add products of fp8 numbers with fewer bits than float32.
CLOSE = 1e-2
# Of numbers that lie between two of fp8 one kernel may take the one and another the other.
TIES = 1e-2
SIZES = [(256, 512, 384), (512, 768, 1152), (4096, 4096, 6144), (4096, 14336, 4096)]
# Half a millisecond.
WAITING_CYCLES = 1_000_000
EXPERTS = [(5, 512, 256, [0, 7, 0, 1000, 33]), (8, 2048, 1536, [1000] * 8), (3, 768, 2048, [2, 0, 4000])]


def main() -> int:
    torch.manual_seed(0)
    failed = []
    for name, error, limit in (*casts(), *products(), *grouped()):
        is_right = error <= limit
        print(f"{name:72} {error:9.1e}" + ("" if is_right else f"  ABOVE {limit}"), flush=True)
        if not is_right:
            failed.append(name)
    print(f"failed: {', '.join(failed) or 'none'}", flush=True)
    for name, milliseconds, rate in speeds():
        print(f"{name:72} {milliseconds:8.3f} ms {rate}", flush=True)
    return 1 if failed else 0


def random(*shape: int) -> Tensor:
    """Blocks of 128 columns that differ in size by more than fp8 can hold with one scale."""
    sizes = 2.0 ** torch.randint(-12, 12, (shape[-1] // 128 + 1,), device="cuda").repeat_interleave(128)[: shape[-1]]
    return (torch.randn(shape, device="cuda") * sizes).bfloat16()


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def casts() -> Iterator[tuple[str, float, float]]:
    tensor = random(512, 768)
    kernels, formula = fp8_casts.choose("blockwise", True), fp8_casts.choose("blockwise", False)
    with torch.compiler.set_stance("force_eager"):
        for dtype in (E4M3, E5M2):
            found, plain = kernels.cast_and_transpose(tensor, dtype), formula.cast_and_transpose(tensor, dtype)
            yield f"cast {dtype}", error(dequantize(found[:2]), dequantize(plain[:2])), TIES
            yield f"cast of the transpose {dtype}", error(dequantize(found[2:]), dequantize(plain[2:])), TIES
        for name in ("cast_weight", "cast_weight_transpose"):
            yield name, *(error(*(dequantize(getattr(each, name)(tensor, None, E4M3)) for each in (kernels, formula))), TIES)
    gate_up, gradient = random(512, 1536), torch.randn(512, 768, device="cuda").bfloat16()
    gate, up = gate_up.double().chunk(2, -1)
    activation = (gate * gate.sigmoid() * up).bfloat16()
    cast, _ = kernels.cast_swiglu(gate_up, E4M3)  # type: ignore[attr-defined]
    _, transpose, factors = kernels.swiglu_gradient(gradient, gate_up, None, E4M3)  # type: ignore[attr-defined]
    yield "SwiGLU, cast", error(dequantize(cast), dequantize(kernels.cast(activation, None, E4M3))), TIES
    expected = dequantize(kernels.cast_transpose(activation, None, E4M3))
    yield "SwiGLU, cast of the transpose", error(dequantize((transpose, factors)), expected), TIES
    # Half of the last of three bits, of the largest number: of a number in the upper binade.
    found = dequantized_rows(fp8_rows.cast_rows(tensor, E4M3))
    difference = (found - tensor.double()).abs().amax(-1) / tensor.double().abs().amax(-1)
    yield "rows with a scale each", float(difference.max()), 16 / 448 + 1e-3
    matrices = torch.randn(4, 144, 784, device="cuda").bfloat16()
    sizes = matrices.double().abs().amax((1, 2))
    found = dequantized_rows(fp8_rows.cast_transposes(matrices, (sizes / 448).float(), E4M3))
    difference = (found - matrices.double().transpose(1, 2)).abs().amax((1, 2)) / sizes
    yield "transposes with the scales of their matrices", float(difference.max()), 16 / 448 + 1e-3
    weights = torch.rand(len(gate_up), device="cuda")
    found = dequantized_rows(fp8_rows.cast_swiglu(gate_up, weights, E4M3))
    activation = (gate * gate.sigmoid() * up * weights.double().unsqueeze(-1)).bfloat16()
    yield "SwiGLU with a scale for each row", error(found, dequantized_rows(fp8_rows.cast_rows(activation, E4M3))), TIES


def dequantized_rows(cast: Cast) -> Tensor:
    numbers, factors = cast
    return numbers.double() * factors.double().unsqueeze(-1)


def operands(rows: int, inputs: int, outputs: int, way: Casts, gradient: torch.dtype) -> dict[str, tuple[Cast, Cast]]:
    """Of the output, the input's gradient and the weight's."""
    tokens, weight, slope = random(rows, inputs), random(outputs, inputs), random(rows, outputs)
    forward, scales, transpose, transposed = way.cast_and_transpose(tokens, E4M3)
    backward = way.cast_and_transpose(slope, gradient)
    return {
        "output": ((forward, scales), way.cast_weight(weight, way.amax(weight), E4M3)),
        "gradient": (backward[:2], way.cast_weight_transpose(weight, way.amax(weight), E4M3)),
        "weight's": (backward[2:], (transpose, transposed)),
    }


def products() -> Iterator[tuple[str, float, float]]:
    way = fp8_casts.choose("blockwise", True)
    for size in SIZES:
        for gradient in (E4M3, E5M2):
            for name, (left, right) in operands(*size, way, gradient).items():
                expected = dequantize(left).double() @ dequantize(right).double().t()
                for dtype in (torch.bfloat16, torch.float32):
                    out = torch.empty_like(expected, dtype=dtype)
                    way.multiply(left, right, dtype, False, out)
                    yield f"blocks, {size}, {gradient}, {name}, {dtype}", error(out, expected), CLOSE


def grouped() -> Iterator[tuple[str, float, float]]:
    gemms = Fp8GroupedGemms(TorchGroupedGemms(), fp8_rows)
    for experts, inputs, outputs, counts in EXPERTS:
        borders = torch.tensor([0, *counts], device="cuda").cumsum(0).int()
        tokens, slope = random(sum(counts), inputs), random(sum(counts), outputs)
        weight = random(experts, outputs, inputs)
        matrices, scales = gemms.matrices(weight)
        for name, found, rows, cast in (
            ("output", gemms.times_transposed(gemms.operand(tokens), matrices, borders), tokens, matrices),
            ("gradient", gemms.times(slope, weight, scales, borders), slope, fp8_rows.cast_transposes(weight, scales, E4M3)),
        ):
            exact, matrix = dequantized_rows(fp8_rows.cast_rows(rows, E4M3)), dequantized_rows(cast)
            first = borders.tolist()
            expected = torch.cat([exact[start:end] @ matrix[at].t() for at, (start, end) in enumerate(itertools.pairwise(first))])
            yield f"experts {counts}, {name}", error(found, expected), CLOSE


def speeds() -> Iterator[tuple[str, float, str]]:
    size = (32768, 4096, 14336)
    for recipe in ("tensorwise", "blockwise"):
        way = fp8_casts.choose(recipe, True)
        for name, (left, right) in operands(*size, way, E4M3).items():
            yield f"{recipe}, {size}, {name}", *taken(2 * math.prod(size), way.multiply, left, right, torch.bfloat16, False)
        tensor = torch.randn(size[0], size[2], device="cuda").bfloat16()
        # With one scale, read for its amax before.
        moved = (6 if recipe == "tensorwise" else 4) * tensor.numel()
        yield f"{recipe}, cast and transpose of {tuple(tensor.shape)}", *taken(moved, way.cast_and_transpose, tensor, E4M3)
        weight = tensor[: size[1]].clone()
        for method in (way.cast_weight, way.cast_weight_transpose):
            yield f"{recipe}, {method.__name__}", *taken(3 * weight.numel(), method, weight, way.amax(weight), E4M3)
        del tensor, weight
    for model, experts, hidden, inner, rows in (
        ("Qwen3-30B-A3B", 128, 2048, 768, 131072),
        ("Mixtral 8x7B", 8, 4096, 14336, 32768),
    ):
        borders = (torch.arange(experts + 1, device="cuda") * (rows // experts)).int()
        tokens, slopes = (torch.randn(rows, width, device="cuda").bfloat16() for width in (hidden, 2 * inner))
        weight = torch.stack([torch.randn(2 * inner, hidden, device="cuda").bfloat16() for _ in range(experts)])
        flops = 2 * rows * hidden * 2 * inner
        for kind, gemms in (("bf16", QuackGroupedGemms()), ("fp8", Fp8GroupedGemms(TorchGroupedGemms(), fp8_rows))):
            forward = partial(multiplied, gemms, tokens, weight, borders)
            yield f"{model}, first matrix, {kind} with its casts, output", *taken(flops, forward)
            known = gemms.matrices(weight)[1]
            backward = partial(gemms.times, slopes, weight, known, borders)
            yield f"{model}, first matrix, {kind} with its casts, gradient", *taken(flops, backward)
        for cast, argument, more, size in (
            (fp8_rows.cast_rows, tokens, (), 3),
            (fp8_rows.cast_rows, weight.flatten(0, 1), (), 3),
            (fp8_rows.cast_transposes, weight, (torch.ones(experts, device="cuda"),), 3),
            (fp8_rows.cast_swiglu, slopes, (torch.ones(rows, device="cuda"),), 2.5),
        ):
            yield (
                f"{model}, {cast.__name__} of {tuple(argument.shape)}",
                *taken(size * argument.numel(), cast, argument, *more, E4M3),
            )
        del tokens, slopes, weight


def multiplied(gemms: GroupedGemms, tokens: Tensor, weight: Tensor, borders: Tensor) -> Tensor:
    return gemms.times_transposed(gemms.operand(tokens), gemms.matrices(weight)[0], borders)


def taken(work: float, function: Callable[..., object], *arguments: object, times: int = 10) -> tuple[float, str]:
    """The median of some runs in milliseconds, and `work`, FLOPs or bytes, per second.

    The GPU waits while the kernels are launched, which takes longer than the shortest of them.
    """
    function(*arguments)
    found = []
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(WAITING_CYCLES)
        start.record()
        function(*arguments)
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    milliseconds = sorted(found)[times // 2]
    return milliseconds, f"{work / milliseconds / 1e9:9.2f} T/s"


if __name__ == "__main__":
    sys.exit(main())
