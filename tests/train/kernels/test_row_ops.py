"""Products and multiples of rows, against torch's."""

import pytest
import torch

from lt_train.kernels.row_ops import BLOCK, dots, scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [8, BLOCK, 2 * BLOCK + 24])
def test_rows(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    rows, table = torch.randn(5, width).to(dtype), torch.randn(7, width).to(dtype)
    chosen, factors = torch.tensor([6, 0, 3, 3, 1]), torch.randn(5)
    expected = (rows.double() * table[chosen].double()).sum(1).float()
    torch.testing.assert_close(dots(rows, table, chosen), expected, atol=1e-3, rtol=1e-5)
    multiples = rows.float() * factors[:, None]
    out = torch.empty_like(rows)
    assert scale(rows, factors, out) is out
    torch.testing.assert_close(out.float(), multiples, atol=0, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6)
    scale(rows, factors, rows)
    assert torch.equal(rows, out)
