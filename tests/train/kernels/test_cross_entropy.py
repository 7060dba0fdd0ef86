"""The loss of each row and the gradient that overwrites the logits, against torch's."""

import pytest
import torch
from torch.nn.functional import cross_entropy as torch_cross_entropy

from lt_train.kernels.cross_entropy import BLOCK, cross_entropy


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("columns", [10, 2 * BLOCK + 5])
def test_losses_and_gradient(dtype: torch.dtype, tolerance: float, columns: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(7, columns, dtype=dtype)
    # The padding of the vocabulary, as the model leaves it.
    logits[:, -3:] = float("-inf")
    logits.requires_grad_()
    labels = torch.randint(0, columns - 3, (7,))
    weights = torch.randn(7)
    expected = torch_cross_entropy(logits.float(), labels, reduction="none")
    (expected_gradient,) = torch.autograd.grad((expected * weights).sum(), logits)
    losses = cross_entropy(logits, labels)
    torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-5)
    (gradient,) = torch.autograd.grad((losses * weights).sum(), logits)
    torch.testing.assert_close(gradient, expected_gradient, atol=tolerance, rtol=tolerance)
    assert gradient.data_ptr() == logits.data_ptr()
