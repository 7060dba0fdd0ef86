"""The scan in chunks equals the recurrence, token by token, in float64; documents have states of their own."""

import pytest
import torch
from torch import Tensor

from lt_train.ops.mamba_scan import CHUNK, mamba_scan

HEADS, GROUPS, VALUES, STATES = 4, 2, 3, 5


def recurrence(values: Tensor, inputs: Tensor, outputs: Tensor, steps: Tensor, rates: Tensor, numbers: Tensor | None) -> Tensor:
    inputs, outputs = (part.repeat_interleave(HEADS // GROUPS, dim=2) for part in (inputs, outputs))
    state = values.new_zeros(len(values), HEADS, STATES, VALUES)
    results = []
    for token in range(values.shape[1]):
        if numbers is not None and token:
            state = state * (numbers[:, token] == numbers[:, token - 1])[:, None, None, None]
        step = steps[:, token, :, None, None]
        state = (rates[:, None, None] * step).exp() * state
        state = state + inputs[:, token].unsqueeze(-1) * (step * values[:, token].unsqueeze(-2))
        results.append((outputs[:, token].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(results, dim=1)


def operands(length: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    steps = torch.nn.functional.softplus(normal(2, length, HEADS) - 2)
    rates = -torch.tensor([0.5, 1.0, 4.0, 16.0])
    return normal(2, length, HEADS, VALUES), normal(2, length, GROUPS, STATES), normal(2, length, GROUPS, STATES), steps, rates


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, 2 * CHUNK + 7])
@pytest.mark.parametrize("has_documents", [False, True])
def test_the_recurrence_of_every_token(length: int, has_documents: bool) -> None:
    parts = [part.requires_grad_() for part in operands(length)]
    numbers = None
    if has_documents:
        borders = torch.tensor([[0, length // 3, length // 2], [0, 1, length - 1]])
        numbers = (torch.arange(length)[None, :, None] >= borders[:, None]).sum(-1) - 1
    scanned = mamba_scan(*parts, numbers)
    wide = [part.detach().double().requires_grad_() for part in parts]
    expected = recurrence(*wide, numbers)
    torch.testing.assert_close(scanned.double(), expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(4))
    (scanned * weights).sum().backward()
    (expected * weights).sum().backward()
    for part, exact in zip(parts, wide, strict=True):
        assert part.grad is not None and exact.grad is not None
        torch.testing.assert_close(part.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)


def test_a_large_step_forgets_and_stays_finite() -> None:
    values, inputs, outputs, steps, rates = operands(2 * CHUNK)
    scanned = mamba_scan(values, inputs, outputs, 100 * steps, rates)
    assert scanned.isfinite().all()
    shifted = mamba_scan(values[:, CHUNK:], inputs[:, CHUNK:], outputs[:, CHUNK:], 100 * steps[:, CHUNK:], rates)
    torch.testing.assert_close(scanned[:, CHUNK + 20 :], shifted[:, 20:])
