"""Casts by blocks of numbers that fp8 holds exactly, for which rounding has no say: the interpreter's is not a GPU's.

Each block of 128 has its own power of two, and one number that is the largest of the format.
"""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from lt_train.kernels import fp8_blocks
from lt_train.kernels.fp8_blocks import BLOCK
from lt_train.kernels.swiglu import swiglu

E4M3 = torch.float8_e4m3fn


def exact(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    torch.manual_seed(0)
    numbers = torch.randn(rows, columns).to(dtype).float()
    # A diagonal has a number in each row and each column of a block.
    numbers[torch.arange(rows)[:, None] % BLOCK == torch.arange(columns)[None, :] % BLOCK] = torch.finfo(dtype).min
    return numbers.to(dtype)


def powers(rows: int, columns: int) -> Tensor:
    return 2.0 ** torch.randint(-8, 8, (rows, columns), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2])
def test_a_tensor_has_a_scale_for_each_block_of_its_rows(dtype: torch.dtype) -> None:
    numbers, scales = exact(2 * BLOCK, 3 * BLOCK, dtype), powers(2 * BLOCK, 3)
    tensor = (numbers.float() * scales.repeat_interleave(BLOCK, 1)).bfloat16()
    same, factors, *none = fp8_blocks.cast(tensor, dtype, True, False)
    assert torch.equal(same.float(), numbers.float())
    assert torch.equal(factors, scales)
    # What cuBLASLt reads: the scales of a column of blocks side by side.
    assert factors.stride() == (1, 2 * BLOCK)
    assert [tensor.numel() for tensor in none] == [0, 0]


@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2])
def test_its_transpose_has_scales_of_its_own(dtype: torch.dtype) -> None:
    numbers, scales = exact(3 * BLOCK, 2 * BLOCK, dtype), powers(2 * BLOCK, 3)
    tensor = (numbers.float() * scales.t().repeat_interleave(BLOCK, 0)).bfloat16()
    *_, transpose, factors = fp8_blocks.cast(tensor, dtype, True, True)
    assert torch.equal(transpose.float(), numbers.float().t())
    assert torch.equal(factors, scales)
    assert factors.stride() == (1, 2 * BLOCK)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("repeats", [False, True])
def test_a_weight_has_a_scale_for_each_square(repeats: bool, transposed: bool) -> None:
    numbers, scales = exact(2 * BLOCK, 3 * BLOCK, E4M3), powers(2, 3)
    weight = (numbers.float() * scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)).bfloat16()
    cast, factors = fp8_blocks.cast_weight(weight, E4M3, transposed, repeats)
    if transposed:
        numbers, scales = numbers.t(), scales.t()
    assert torch.equal(cast.float(), numbers.float())
    assert torch.equal(factors, scales.repeat_interleave(BLOCK, 0) if repeats else scales)
    assert factors.stride() == ((1, len(numbers)) if repeats else (scales.shape[1], 1))


def test_zeros_and_what_is_not_finite_stay_in_their_blocks() -> None:
    tensor = torch.zeros(BLOCK, 2 * BLOCK, dtype=torch.bfloat16)
    tensor[5, BLOCK + 7] = torch.nan
    same, factors, transpose, other = fp8_blocks.cast(tensor, E4M3, True, True)
    assert factors.isnan().nonzero().tolist() == [[5, 1]]
    assert other.isnan().nonzero().tolist() == [[BLOCK + 7, 0]]
    assert not same.float()[:, :BLOCK].any() and not transpose.float()[:BLOCK].any()


def test_swiglu_is_cast_where_it_is_computed() -> None:
    torch.manual_seed(0)
    gate_up = torch.randn(2 * BLOCK, 4 * BLOCK, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(2 * BLOCK, 2 * BLOCK, dtype=torch.bfloat16)
    output = swiglu(gate_up)
    expected, factors, _, _ = fp8_blocks.cast(output.detach(), E4M3, True, False)
    found, found_factors = fp8_blocks.swiglu(gate_up.detach(), E4M3)
    assert torch.equal(found.float(), expected.float()) and torch.equal(found_factors, factors)
    gate, up = gate_up.detach().float().chunk(2, -1)
    sizes = (silu(gate) * up).unflatten(1, (-1, BLOCK)).abs().amax(2)
    torch.testing.assert_close(found_factors, sizes / torch.finfo(E4M3).max, rtol=1e-2, atol=0)

    (expected_gradient,) = torch.autograd.grad(output, gate_up, gradient)
    *_, expected, factors = fp8_blocks.cast(output.detach(), E4M3, False, True)
    of_gate_up, transpose, found_factors = fp8_blocks.swiglu_gradient(gradient, gate_up.detach(), E4M3)
    assert torch.equal(of_gate_up, expected_gradient)
    assert torch.equal(transpose.float(), expected.float()) and torch.equal(found_factors, factors)
