"""The amax that kernels compute of what they write, against that of a reading, and when it is no longer valid."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lt_train.kernels import amax_reduction
from lt_train.kernels.rms_norm import rms_norm
from lt_train.kernels.rotary import split_and_rotate
from lt_train.kernels.swiglu import swiglu


@pytest.fixture(autouse=True, scope="module")
def wanted() -> Iterator[None]:
    amax_reduction.enable(True)
    yield
    amax_reduction.enable(False)


def size(parts: Tensor) -> float:
    return float(parts.view(torch.float32).max())


def noted(tensor: Tensor) -> float | None:
    """What is known of `tensor` without reading it."""
    found: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(amax_reduction, "compute_parts", lambda tensor: found.append(tensor))
        parts = amax_reduction.amax_parts(tensor)
    return None if found else size(parts)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


class Seen(torch.autograd.Function):
    """Passes on; what is known of the gradient that comes back goes into `known`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, known: list[float | None]) -> Tensor:
        ctx.known = known
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.known += [noted(gradient), float(gradient.abs().max())]
        return gradient.clone(), None


def test_found_by_reading() -> None:
    tensor = random(3, 5000)
    tensor[2, 1234] = -100
    assert size(amax_reduction.compute_parts(tensor)) == 100
    tensor[0, 0] = torch.nan
    assert torch.tensor(size(amax_reduction.compute_parts(tensor))).isnan()


@settings(max_examples=10)
@given(rows=st.integers(1, 5), width=st.integers(1, 40), seed=st.integers(0, 2**31))
def test_noted_by_every_kernel(rows: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    known: list[float | None] = []

    def checked(tensor: Tensor) -> Tensor:
        assert noted(tensor) == tensor.abs().max()
        return tensor

    stream, addend = (random(rows, 2, width).requires_grad_() for _ in range(2))
    weight = random(width).requires_grad_()
    normed, total = rms_norm(Seen.apply(stream, known), Seen.apply(addend, known), weight, 1e-5)
    (checked(normed) * random(rows, 2, width) + total).sum().backward()
    checked(swiglu(Seen.apply(random(rows, 2, 2 * width).requires_grad_(), known))).sum().backward()
    mixed, angles = Seen.apply(random(rows, 2, 4 * 8).requires_grad_(), known), torch.rand(rows, 4)
    query, *_ = split_and_rotate(mixed, angles.cos(), angles.sin(), 1, 8)
    (query * random(*query.shape)).sum().backward()
    assert len(known) == 8
    assert known[::2] == known[1::2]


@pytest.mark.parametrize(
    "use",
    [
        lambda tensor: tensor,
        lambda tensor: tensor.view(-1, 8),
        lambda tensor: tensor.reshape(2, -1),
        lambda tensor: tensor.detach(),
    ],
)
def test_views_of_all_numbers_know_them(use: Callable[[Tensor], Tensor]) -> None:
    assert noted(use(swiglu(random(2, 4, 16)))) is not None


@pytest.mark.parametrize(
    "use",
    [
        lambda tensor: tensor[1],
        lambda tensor: tensor * 1,
        lambda tensor: tensor.mul_(2),
        lambda tensor: (tensor.view(-1)[:1].fill_(99), tensor)[1],
        lambda tensor: tensor.view(torch.int16),
    ],
)
def test_other_numbers_are_read_again(use: Callable[[Tensor], Tensor]) -> None:
    assert noted(use(swiglu(random(2, 4, 16)))) is None


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_sums_of_gradients_are_read_again(uses: int) -> None:
    known: list[float | None] = []
    gate_up = Seen.apply(random(2, 16).requires_grad_(), known)
    sum(swiglu(gate_up).sum() for _ in range(uses)).backward()
    assert (known[0] == known[1]) if uses == 1 else known[0] is None


def test_a_gradient_passed_on_by_a_sum_is_known() -> None:
    """As that of the residual stream, which the GEMM before it gets too."""
    known: list[float | None] = []
    stream = random(2, 16)
    output = Seen.apply(random(4, 8).requires_grad_(), known).view(2, 16)
    normed, _ = rms_norm(stream + output, None, random(16).requires_grad_(), 1e-5)
    normed.sum().backward()
    assert known[0] == known[1]


def test_new_tensors_in_the_same_memory_are_read() -> None:
    for _ in range(20):
        swiglu(random(2, 2048))
        assert noted(torch.ones(2, 1024, dtype=torch.bfloat16)) is None


def test_nothing_is_noted_unless_wanted() -> None:
    amax_reduction.enable(False)
    try:
        assert noted(swiglu(random(2, 16))) is None
    finally:
        amax_reduction.enable(True)


def test_a_nan_is_the_largest() -> None:
    gate_up = random(3, 16)
    gate_up[1, 3] = torch.nan
    found = noted(swiglu(gate_up))
    assert found is not None
    assert torch.tensor(found).isnan()
