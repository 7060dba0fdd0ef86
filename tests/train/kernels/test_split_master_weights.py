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


def test_what_is_loaded_in_parts_is_split_as_the_whole() -> None:
    whole = torch.randn(10, 7)
    split = torch.empty(70, dtype=torch.bfloat16), torch.empty(70, dtype=torch.int16)
    split_master_weights.split(whole.view(-1), *split)
    found = torch.empty(70, dtype=torch.bfloat16), torch.empty(70, dtype=torch.int16)
    loading = split_master_weights.Loading(*(half.view(10, 7) for half in found))
    for rows in (slice(6, 8), slice(2, 5)):
        found_loading, begin = split_master_weights.Loading.find_containing(loading.whole[rows]) or pytest.fail("is not found")
        found_loading.put(whole[rows].reshape(-1), begin)
    rest = whole.clone()
    # Of these, nothing more is taken.
    rest[2:5] = rest[6:8] = torch.nan
    loading.take(rest)
    assert torch.equal(found[0], split[0]) and torch.equal(found[1], split[1])
    assert split_master_weights.Loading.find_containing(whole) is None
    assert split_master_weights.Loading.find_containing(loading.whole.to(torch.bfloat16)) is None
