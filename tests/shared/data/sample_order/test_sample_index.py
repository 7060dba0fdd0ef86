"""The indices are those of megatron-core, byte for byte."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets import helpers
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split

from lt_shared.console import BadData
from lt_shared.data.sample_order import sample_index
from lt_shared.data.sample_order.sample_index import DOCUMENT_INDEX, SAMPLE_INDEX, SHUFFLE_INDEX, Reading


def megatrons(prefix: Path, reading: Reading, cache: Path) -> dict[str, bytes]:
    config = GPTDatasetConfig(
        random_seed=reading.seed,
        sequence_length=reading.sequence_length,
        blend=([str(prefix)], None),
        split="1",
        path_to_cache=str(cache),
        tokenizer=SimpleNamespace(vocab_size=100, eod=99, unique_identifiers={}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    shown = np.arange(reading.first, reading.last, dtype=np.int32)
    GPTDataset(IndexedDataset(str(prefix)), str(prefix), shown, reading.samples, Split.train, config)
    return {path.name.rsplit("-", 1)[-1]: path.read_bytes() for path in cache.glob("*.npy")}


def reading_of(lengths: list[int], first: int, last: int, samples: int, sequence_length: int, seed: int) -> Reading:
    return Reading(first, last, sum(lengths[first:last]), samples, sequence_length, seed)


def assert_equal(lengths: list[int], reading: Reading, place: Path) -> None:
    synthetic.write(place / "data", lengths)
    expected = megatrons(place / "data", reading, place / "cache")
    sample_index.write(place, np.array(lengths, np.int32), reading)
    assert {name: (place / name).read_bytes() for name in (DOCUMENT_INDEX, SAMPLE_INDEX, SHUFFLE_INDEX)} == expected


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=30),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    samples=st.integers(1, 60),
    sequence_length=st.integers(2, 20),
    seed=st.integers(0, 2**32 - 1),
    at_once=st.integers(1, 40),
)
def test_indices_equal_megatrons(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    bounds: tuple[float, float],
    samples: int,
    sequence_length: int,
    seed: int,
    at_once: int,
) -> None:
    first, last = sorted(round(bound * len(lengths)) for bound in bounds)
    # Megatron's C++ takes an epoch of one token for none.
    if sum(lengths[first:last]) < 2:
        first, last, lengths = 0, len(lengths), [*lengths[:-1], lengths[-1] + 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_index, "SEQUENCES_AT_ONCE", at_once)
        reading = reading_of(lengths, first, last, samples, sequence_length, seed)
        assert_equal(lengths, reading, tmp_path_factory.mktemp("indices"))


@pytest.mark.parametrize(("samples", "epochs", "separate"), [(9, 1, 0), (11, 2, 1), (19, 2, 0), (25, 3, 2), (28, 3, 0)])
def test_the_last_epoch_is_shuffled_for_itself_when_little_of_it_is_needed(
    samples: int, epochs: int, separate: int, tmp_path: Path
) -> None:
    lengths = [7] * 15
    reading = reading_of(lengths, 0, 15, samples, 10, 1)
    assert (reading.epochs, reading.separate_epochs) == (epochs, separate)
    assert_equal(lengths, reading, tmp_path)


@settings(max_examples=60)
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12), st.integers(1, 300))
def test_blend_equals_megatrons(tmp_path_factory: pytest.TempPathFactory, weights: list[float], samples: int) -> None:
    shares = (np.array(weights) / np.sum(weights)).tolist()
    datasets, numbers = np.zeros(samples, np.int16), np.zeros(samples, np.int64)
    helpers.build_blending_indices(datasets, numbers, shares, len(shares), samples, False)
    place = tmp_path_factory.mktemp("blend")
    sample_index.write_blend(place, shares, samples)
    found: list[Any] = sample_index.load(place, sample_index.DATASET_INDEX, sample_index.DATASET_SAMPLE_INDEX)
    assert (found[0].dtype, found[1].dtype) == (np.int16, np.int64)
    np.testing.assert_array_equal(found[0], datasets)
    np.testing.assert_array_equal(found[1], numbers)


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    sample_index.write_blend(tmp_path, [1.0], 100)
    path = tmp_path / sample_index.DATASET_INDEX
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(BadData, match=str(tmp_path)):
        sample_index.load(tmp_path, sample_index.DATASET_INDEX)


def test_indices_are_on_the_disk_when_they_are_written(tmp_path: Path, durable_calls: list[tuple[str, str, int]]) -> None:
    """All of each file, so that what is published under a name that stands for it survives a power failure."""
    sample_index.write(tmp_path, np.full(40, 7, np.int32), reading_of([7] * 40, 0, 40, 30, 10, 1))
    sample_index.write_blend(tmp_path, [0.5, 0.5], 100)
    sizes = {str(path): path.stat().st_size for path in tmp_path.glob("*.npy")}
    assert len(sizes) == 5
    assert {path: size for call, path, size in durable_calls if call == "fsync" and path in sizes} == sizes
