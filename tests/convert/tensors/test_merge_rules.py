"""Merge methods value by value: torch's operations in mergekit's order, and plain arithmetic."""

import math
from collections.abc import Iterator, Sequence

import numpy
import pytest
import torch
from numpy.typing import NDArray

from lt_convert.tensors.merge_rules import Linear, Rule, Slerp, TaskArithmetic
from lt_convert.tensors.sparsity import Magnitude, Random

DTYPES = ("float32", "bfloat16", "float16")
COUNT = 1000
WINDOW = 128

Values = NDArray[numpy.float32]


def models(dtype: str, count: int = 4) -> list[torch.Tensor]:
    """Tensors of fine-tuned models, the first that of their base."""
    generator = torch.Generator().manual_seed(3)
    base = torch.randn(COUNT, generator=generator) * 0.1
    tuned = [base + torch.randn(COUNT, generator=generator) * 0.01 * index for index in range(1, count)]
    return [one.to(getattr(torch, dtype)) for one in (base, *tuned)]


def merged(rule: Rule, tensors: list[torch.Tensor], dtype: str, window: int = WINDOW) -> torch.Tensor:
    values = [one.float().numpy() for one in tensors]

    def windows(numbers: Sequence[int]) -> Iterator[tuple[int, list[Values]]]:
        for first in range(0, COUNT, window):
            yield first, [values[number][first : first + window] for number in numbers]

    statistics = rule.statistics(windows, dtype)
    parts = [rule.merged([one.copy() for one in part], first, statistics, dtype) for first, part in windows(range(len(values)))]
    result = torch.from_numpy(numpy.concatenate(parts))
    assert torch.equal(result, result.to(getattr(torch, dtype)).float()), "a value of another dtype"
    return result.to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_linear_merge_sums_in_float32(dtype: str) -> None:
    tensors, weights = models(dtype), (0.5, -0.25, 0.3, 1.0)
    expected = sum(one.double() * numpy.float32(weight) for one, weight in zip(tensors, weights, strict=True))
    whole = merged(Linear(weights, normalize=False), tensors, dtype)
    torch.testing.assert_close(whole.double(), expected, rtol=2 * torch.finfo(whole.dtype).eps, atol=1e-7)
    share = merged(Linear(weights), tensors, dtype)
    torch.testing.assert_close(share.double(), expected / 1.55, rtol=2 * torch.finfo(share.dtype).eps, atol=1e-7)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_slerp_turns_by_a_share_of_the_angle(t: float) -> None:
    generator = torch.Generator().manual_seed(5)
    tensors = [torch.randn(COUNT, generator=generator) for _ in range(2)]
    one, other = (tensor.double() for tensor in tensors)
    angle = math.acos(float(one @ other / one.norm() / other.norm()))
    expected = (math.sin((1 - t) * angle) * one + math.sin(t * angle) * other) / math.sin(angle)
    result = merged(Slerp(t), tensors, "float32")
    torch.testing.assert_close(result.double(), expected, rtol=1e-6, atol=1e-6)


def test_slerp_is_linear_where_there_is_no_angle() -> None:
    one = torch.linspace(-1, 1, COUNT)
    torch.testing.assert_close(merged(Slerp(0.25), [one, 2 * one], "float32"), 1.25 * one)
    zeros = torch.zeros(COUNT)
    assert torch.equal(merged(Slerp(0.5), [zeros, zeros], "float32"), zeros)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_task_arithmetic_rounds_each_step_as_torch(dtype: str, normalize: bool) -> None:
    base, *others = models(dtype)
    weights = (0.5, -0.3, 0.7)
    terms = [(other - base) * torch.tensor(weight, dtype=base.dtype) for other, weight in zip(others, weights, strict=True)]
    mixed = torch.stack(terms).sum(dim=0)
    if normalize:
        mixed = mixed / torch.tensor(weights, dtype=base.dtype).sum()
    expected = base + mixed * 1.1
    assert torch.equal(merged(TaskArithmetic(weights, 1.1, normalize), [base, *others], dtype), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_takes_the_largest_differences_of_one_sign(dtype: str) -> None:
    base, *others = models(dtype)
    weights, densities = (0.5, 0.3, 0.7), (0.5, 0.1, 0.3)
    differences = []
    for other, density in zip(others, densities, strict=True):
        difference = other - base
        largest = torch.sort(difference.abs().float(), descending=True, stable=True).indices[: int(density * COUNT)]
        kept = torch.zeros_like(difference)
        kept[largest] = difference[largest]
        differences.append(kept)
    scale = torch.tensor(weights, dtype=base.dtype)[:, None]
    weighted = torch.stack(differences) * scale
    sign = (weighted.sum(dim=0) >= 0).to(base.dtype) * 2 - 1
    agrees = weighted.sign() == sign
    divisor = (scale * agrees).sum(dim=0)
    divisor[divisor == 0] = 1
    expected = base + (weighted * agrees).sum(dim=0) / divisor
    rule = TaskArithmetic(weights, 1.0, True, True, tuple(Magnitude(density, COUNT) for density in densities))
    for window in (WINDOW, COUNT):
        assert torch.equal(merged(rule, [base, *others], dtype, window), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_masks_keep_the_sum_of_magnitudes(dtype: str) -> None:
    base, other = models(dtype, 2)
    sparsity = Random(0.25, "0/model.norm.weight/0")
    result = merged(TaskArithmetic((1.0,), sparsities=(sparsity,)), [base, other], dtype)
    is_kept = torch.from_numpy(sparsity.is_kept(0, COUNT))
    assert torch.equal(result[~is_kept], base[~is_kept])
    difference = (other - base).float()
    scale = difference.abs().sum() / (difference * is_kept).abs().sum()
    expected = base.float() + difference * is_kept * scale
    torch.testing.assert_close(result.float(), expected, rtol=3 * torch.finfo(base.dtype).eps, atol=1e-3)
