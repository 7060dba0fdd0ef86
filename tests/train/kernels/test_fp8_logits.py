"""The gradient of logits in fp8 and its transpose.

The interpreter rounds numbers of fp8 badly: to the next smaller one, or, below a power of two, to half of that.
"""

import pytest
import torch

from lt_train.kernels.fp8_logits import LABEL, SMALLEST_SHARE, cast_gradient, other_shares

E5M2 = torch.float8_e5m2


def cast(logits: torch.Tensor, labels: torch.Tensor, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the cast as float64, the expected gradient with the cast's scale, and the transpose."""
    rows, width = logits.shape
    exact = logits[:, :columns].double()
    here = (labels >= 0) & (labels < columns)
    losses = exact.logsumexp(1) - exact.gather(1, labels.clamp(0, columns - 1)[:, None])[:, 0]
    losses = torch.where(here, losses, torch.tensor(1.0, dtype=torch.float64))
    shares = other_shares(losses.float())
    result = torch.full((rows, width), 7.0).to(E5M2)
    transpose = torch.full((width, rows + 16), 7.0).to(E5M2)
    cast_gradient(logits, labels, exact.logsumexp(1).float(), shares, columns, result, transpose[:, 16:])
    assert torch.equal(transpose[:, :16].float(), torch.full((width, 16), 7.0))
    expected = torch.zeros(rows, width, dtype=torch.float64)
    expected[:, :columns] = exact.softmax(1) * LABEL / shares.double()[:, None]
    return result.double(), expected, transpose[:, 16:].double()


def check(result: torch.Tensor, expected: torch.Tensor) -> None:
    ratio = result / expected
    assert ratio.min() > 0.48
    assert ratio.max() < 1.13
    assert ratio.median() == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("scale", [0.1, 1.0, 2.0])
@pytest.mark.parametrize(("rows", "width", "columns"), [(16, 48, 48), (144, 272, 260)])
def test_gradient_and_its_transpose(rows: int, width: int, columns: int, scale: float) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(rows, width) * scale).bfloat16()
    labels = torch.randint(0, columns, (rows,))
    result, expected, transpose = cast(logits, labels, columns)
    assert torch.equal(transpose, result.t())
    at_labels = torch.zeros_like(result, dtype=torch.bool).scatter_(1, labels[:, None], True)
    assert torch.equal(result[at_labels], torch.full((rows,), -LABEL, dtype=torch.float64))
    assert not result[:, columns:].any()
    others = ~at_labels
    others[:, columns:] = False
    check(result[others], expected[others])


def test_a_label_of_another_rank() -> None:
    logits = torch.randn(16, 32).bfloat16()
    result, expected, _ = cast(logits, torch.full((16,), -5), 32)
    check(result, expected)


def test_a_certain_label() -> None:
    logits = torch.zeros(16, 16).bfloat16()
    logits[:, 3] = 100
    result, _, _ = cast(logits, torch.full((16,), 3), 16)
    assert torch.equal(result[:, 3], torch.full((16,), -LABEL, dtype=torch.float64))
    assert not result[:, :3].any()
    assert other_shares(torch.zeros(1)) == SMALLEST_SHARE


def test_probabilities_down_to_two_to_the_minus_thirty_one_are_kept() -> None:
    logits = torch.full((16, 16), -20.0).bfloat16()
    logits[:, 0] = 0
    result, expected, _ = cast(logits, torch.full((16,), 1), 16)
    check(result[:, 2:], expected[:, 2:])


def test_what_is_not_a_number_stays() -> None:
    logits = torch.zeros(16, 16).bfloat16()
    logits[2, 5] = torch.nan
    result, _, _ = cast(logits, torch.zeros(16, dtype=torch.int64), 16)
    assert result[2].isnan().any()
    assert result[[0, 1, 3]].isfinite().all()
