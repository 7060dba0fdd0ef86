"""Casts by rows of numbers that fp8 holds exactly, for which rounding has no say: the interpreter's is not a GPU's."""

import pytest
import torch

from lt_train.kernels.fp8_rows import cast_rows, cast_swiglu, cast_transposes

E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize("shape", [(3, 48), (5, 272)])
def test_rows_have_a_scale_each(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    numbers, scales = torch.randn(shape).to(E4M3).float(), 2.0 ** torch.arange(-8, shape[0] - 8).float()
    numbers[:, -1] = -448
    cast, factors = cast_rows((numbers * scales[:, None]).bfloat16(), E4M3)
    assert torch.equal(cast.float(), numbers)
    assert torch.equal(factors, scales)


@pytest.mark.parametrize("width", [48, 272])
def test_swiglu_of_rows(width: int) -> None:
    """Gates of which SiLU is nothing but the gate."""
    torch.manual_seed(0)
    numbers, weights = torch.randn(3, width).to(E4M3).float(), torch.tensor([0.5, 1.0, 0.25])
    numbers[:, 7] = 448
    cast, factors = cast_swiglu(torch.cat((torch.full_like(numbers, 64.0), numbers / 64), 1).bfloat16(), weights, E4M3)
    assert torch.equal(cast.float(), numbers)
    assert torch.equal(factors, weights)
    gate_up = torch.randn(2, 2 * width).bfloat16()
    gate, up = gate_up.float().chunk(2, 1)
    _, factors = cast_swiglu(gate_up, weights[:2], E4M3)
    expected = gate * gate.sigmoid() * up * weights[:2, None]
    torch.testing.assert_close(factors * 448, expected.abs().amax(1), rtol=2**-7, atol=0)


def test_transposes_have_the_scale_of_their_matrix() -> None:
    torch.manual_seed(0)
    numbers, scales = torch.randn(3, 272, 80).to(E4M3).float(), 2.0 ** torch.tensor([-7.0, 0.0, 3.0])
    cast, factors = cast_transposes((numbers * scales[:, None, None]).bfloat16(), scales, E4M3)
    assert torch.equal(cast.float(), numbers.transpose(1, 2))
    assert torch.equal(factors, scales[:, None].expand(3, 80))


def test_no_rows_zeros_and_nan() -> None:
    none = torch.empty(0, 16, dtype=torch.bfloat16)
    assert [tensor.shape for tensor in cast_rows(none, E4M3)] == [(0, 16), (0,)]
    assert [tensor.shape for tensor in cast_swiglu(none, torch.empty(0), E4M3)] == [(0, 8), (0,)]
    rows = torch.zeros(2, 16, dtype=torch.bfloat16)
    rows[1, 3] = torch.nan
    cast, factors = cast_rows(rows, E4M3)
    assert not cast[0].float().any() and factors.isnan().tolist() == [False, True]
