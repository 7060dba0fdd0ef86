"""Float32 in two split_weight: every bit comes back, and the upper half is the nearest bfloat16."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lt_train.kernels import split_master_weights


def split_weight(whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weight, low_bits = torch.empty(len(whole), dtype=torch.bfloat16), torch.empty(len(whole), dtype=torch.int16)
    split_master_weights.split(whole, weight, low_bits)
    return weight, low_bits


def bits(numbers: torch.Tensor) -> list[int]:
    found: list[int] = numbers.view(torch.int32).tolist()
    return found


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=50))
def test_every_number_comes_back(numbers: list[float]) -> None:
    whole = torch.tensor(numbers, dtype=torch.float32)
    weight, low_bits = split_weight(whole)
    assert bits(split_master_weights.joined(weight, low_bits)) == bits(whole)
    tied = low_bits == -(2**15)
    assert torch.equal(weight[~tied], whole.bfloat16()[~tied])


def test_what_is_not_a_number_stays_so() -> None:
    whole = torch.tensor([0x7FC00000, 0x7FFFFFFF, -1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    weight, low_bits = split_weight(whole)
    assert weight.isnan().all()
    assert split_master_weights.joined(weight, low_bits).isnan().all()


def test_ties_go_away_from_zero() -> None:
    weight, _ = split_weight(torch.tensor([1 + 2**-8, -1 - 2**-8]))
    assert weight.tolist() == [1 + 2**-7, -1 - 2**-7]


def test_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_master_weights, "SLICE_ELEMENTS", 3)
    whole = torch.randn(10)
    assert bits(split_master_weights.joined(*split_weight(whole))) == bits(whole)
