"""The states of the gated delta rule by Triton against torch's operations, and in the whole rule."""

import pytest
import torch

from lt_train.kernels.delta_states import COLUMNS, delta_states
from lt_train.ops.gated_delta_rule import gated_delta_rule, states_by_torch


# Value channels below, at and above a program's columns; keys that are no power of two.
@pytest.mark.parametrize(("chunks", "tokens", "keys", "values"), [(2, 16, 16, 8), (3, 16, 24, COLUMNS), (2, 32, 8, COLUMNS + 5)])
def test_states_and_gradients(chunks: int, tokens: int, keys: int, values: int) -> None:
    generator = torch.Generator().manual_seed(chunks)
    shapes = [(2, chunks, 3, tokens, size) for size in (values, keys, keys)] + [(2, chunks, 3, keys)]
    parts = [torch.randn(shape, generator=generator).mul(0.3).requires_grad_() for shape in shapes]
    results = []
    for compute in (states_by_torch, delta_states):
        outputs = compute(*parts)
        weights = [torch.randn(output.shape, generator=torch.Generator().manual_seed(7)) for output in outputs]
        total = torch.stack([(output * weight).sum() for output, weight in zip(outputs, weights, strict=True)]).sum()
        results.append([*outputs, *torch.autograd.grad(total, parts)])
    for expected, result in zip(*results, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_channel", [False, True])
def test_the_rule_is_the_same(by_channel: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 70, *shape, generator=generator) for shape in ((1, 8), (1, 8), (2, 12)))
    decays = -torch.rand(1, 70, 2, *((8,) if by_channel else ()), generator=generator)
    strengths = torch.rand(1, 70, 2, generator=generator)
    numbers = (torch.arange(70)[None] >= 30).int()
    plain = gated_delta_rule(query, key, value, decays, strengths, numbers)
    by_triton = gated_delta_rule(query, key, value, decays, strengths, numbers, by_triton=True)
    torch.testing.assert_close(by_triton, plain, rtol=1e-4, atol=1e-5)
