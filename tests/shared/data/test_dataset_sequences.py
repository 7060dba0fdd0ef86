"""`lt_shared.data.indexed_dataset.open`: the sequences that megatron-core reads, as a Python sequence."""

import concurrent.futures
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset

from lt_shared import BadConfig, BadData, NoInput
from lt_shared.data import indexed_dataset

DOCUMENTS = [[[1, 2], [3]], [], [[4, 5, 6]], [[]], [[65535]]]
# Megatron's reader cannot open a dataset without tokens.
documents_of_uint16 = st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=4), max_size=6).filter(
    lambda documents: any(sequence for sequences in documents for sequence in sequences)
)


def write(prefix: Path, documents: list[list[list[int]]]) -> Path:
    with indexed_dataset.Writer(str(prefix), np.uint16) as writer:
        for sequences in documents:
            tokens = [token for sequence in sequences for token in sequence]
            writer.append(np.array(tokens, np.int64), np.array(list(map(len, sequences)), np.int64), np.array([len(sequences)]))
        writer.publish()
    return prefix


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    return write(tmp_path / "data", DOCUMENTS)


@given(documents=documents_of_uint16)
def test_sequences_and_documents_are_those_of_megatron(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]]
) -> None:
    prefix = write(tmp_path_factory.mktemp("data") / "data", documents)
    theirs = IndexedDataset(str(prefix))
    with indexed_dataset.open(prefix) as ours:
        assert len(ours) == len(theirs)
        for number in range(len(theirs)):
            assert ours[number].dtype == theirs[number].dtype == ours.dtype
            assert ours[number].tolist() == theirs[number].tolist()
        assert ours.sequence_lengths.tolist() == theirs.sequence_lengths.tolist()
        bounds = theirs.document_indices.tolist()
        joined = [
            [token for number in range(first, last) for token in theirs[number].tolist()]
            for first, last in itertools.pairwise(bounds)
        ]
        assert [document.tolist() for document in ours.documents] == joined


def test_slices_and_numbers_from_the_end(prefix: Path) -> None:
    sequences = [sequence for document in DOCUMENTS for sequence in document]
    with indexed_dataset.open(str(prefix)) as dataset:
        assert [found.tolist() for found in dataset] == sequences
        for chosen in (slice(None), slice(1, 3), slice(-2, None), slice(None, None, -1), slice(0, 99, 2), slice(7, 9)):
            assert [found.tolist() for found in dataset[chosen]] == sequences[chosen]
        for number in range(-len(sequences), len(sequences)):
            assert dataset[number].tolist() == sequences[number]
        assert dataset[np.int64(2)].tolist() == sequences[2]
        assert [found.tolist() for found in dataset.documents[-3:]] == [[4, 5, 6], [], [65535]]
        assert dataset.documents[0].tolist() == [1, 2, 3]
        assert dataset.tokens.tolist() == [1, 2, 3, 4, 5, 6, 65535]


@pytest.mark.parametrize("number", [5, -6, 10**9])
def test_a_number_out_of_range(prefix: Path, number: int) -> None:
    with indexed_dataset.open(prefix) as dataset:
        with pytest.raises(IndexError, match=f"^number {number} of 5$"):
            dataset[number]
        with pytest.raises(IndexError):
            dataset.documents[number]
        with pytest.raises(TypeError):
            dataset["0"]  # type: ignore[call-overload]


def test_arrays_are_views_that_cannot_be_written(prefix: Path) -> None:
    with indexed_dataset.open(prefix) as dataset:
        found = dataset[0]
        assert found.dtype == np.uint16
        for array in (found, dataset.tokens, dataset.sequence_lengths, dataset.documents[0]):
            assert type(array) is np.ndarray
        assert np.shares_memory(found, dataset.tokens)
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 9


def test_a_closed_dataset_says_so_and_its_arrays_stay(prefix: Path) -> None:
    with indexed_dataset.open(prefix) as dataset:
        taken, documents = dataset[0], dataset.documents
        assert repr(dataset) == f"<IndexedDataset {prefix}: 5 sequences, 7 tokens, uint16>"
    assert taken.tolist() == [1, 2]
    assert documents[2].tolist() == [4, 5, 6]
    assert repr(dataset) == f"<IndexedDataset {prefix}: closed>"
    for use in (lambda: dataset[0], lambda: len(dataset), lambda: dataset.tokens, lambda: dataset.documents):
        with pytest.raises(ValueError, match="is closed"):
            use()
    dataset.close()


def test_the_prefix_is_that_of_when_it_was_opened(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prefix.parent)
    assert indexed_dataset.open("data").prefix == str(prefix)


def test_several_threads_read_one_dataset(prefix: Path) -> None:
    with indexed_dataset.open(prefix) as dataset, concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda number: dataset[number % 5].tolist(), range(200)))
    assert found[:5] * 40 == found


def test_a_dataset_without_tokens(tmp_path: Path) -> None:
    with indexed_dataset.open(write(tmp_path / "empty", [[[]], []])) as dataset:
        assert [found.tolist() for found in dataset] == [[]]
        assert [found.tolist() for found in dataset.documents] == [[], []]


def test_what_is_no_dataset(prefix: Path, tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="no such file"):
        indexed_dataset.open(tmp_path / "other")
    with pytest.raises(BadConfig, match="needs a local"):
        indexed_dataset.open("s3://bucket/data")
    tokens = Path(f"{prefix}.bin")
    tokens.write_bytes(tokens.read_bytes()[:-1])
    with pytest.raises(BadData, match="13 bytes, its index says 14"):
        indexed_dataset.open(prefix)
