"""Packing: no token lost, no document cut that fits, and as few samples as a plain best fit decreasing needs."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.datasets import packing, verification
from lt_shared.console import BadConfig, BadData, UsageError
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data import indexed_dataset

EOD = 999


def write(prefix: Path, documents: list[list[int]], eod: int | None = EOD, split_at: int = 0) -> str:
    """Documents of these tokens; with `split_at` each in two sequences."""
    with indexed_dataset.Writer(str(prefix), np.uint16) as writer:
        for tokens in documents:
            parts = [tokens[:split_at], tokens[split_at:]] if split_at else [tokens]
            writer.append(np.array(tokens, np.int64), np.array(list(map(len, parts)), np.int32), np.array([len(parts)], np.int32))
        dataset = Dataset(str(prefix), writer.documents, writer.tokens, "uint16", EOD + 1, eod)
        sidecar = manifest.sidecar_content({"v": 2, "dataset": manifest.record_of(dataset)})
        writer.publish((manifest.sidecar_path(str(prefix)), sidecar))
    return str(prefix)


def samples(prefix: str) -> list[list[int]]:
    reader = indexed_dataset.Reader(prefix)
    ends = np.cumsum(reader.sequence_lengths)
    return [reader.tokens[end - length : end].tolist() for end, length in zip(ends, reader.sequence_lengths, strict=True)]


def plainly(sizes: list[int], capacity: int) -> int:
    """How many bins best fit decreasing needs, by looking at all of them."""
    spaces: list[int] = []
    for size in sorted((size for size in sizes if size), reverse=True):
        fitting = [space for space in spaces if space >= size]
        if fitting:
            spaces.remove(min(fitting))
        spaces.append((min(fitting) if fitting else capacity) - size)
    return len(spaces)


@settings(max_examples=120, deadline=None)
@given(st.lists(st.integers(0, 19), max_size=40), st.integers(20, 40))
def test_bins_are_those_of_best_fit_decreasing(sizes: list[int], capacity: int) -> None:
    bins, count = packing.best_fit_decreasing(np.array(sizes, np.int64), capacity)
    assert count == plainly(sizes, capacity)
    filled = Counter[int]()
    for size, number in zip(sizes, bins.tolist(), strict=True):
        assert (number == -1) == (size == 0)
        filled[number] += size
    assert sorted(number for number in filled if number >= 0) == list(range(count))
    assert all(size <= capacity for size in filled.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 12), st.sampled_from([5, 60, 10**6]), st.sampled_from([0, 2]))
def test_every_token_is_there_and_nothing_is_cut_that_fits(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], seq_length: int, window: int, split_at: int
) -> None:
    place = tmp_path_factory.mktemp("packing")
    documents = [[*((number * 31 + token) % EOD for token in range(length)), EOD] for number, length in enumerate(lengths)]
    source = write(place / "source", documents, split_at=split_at)
    before, packing.WINDOW_TOKENS = packing.WINDOW_TOKENS, window
    try:
        made = packing.build(packing.plan(source, str(place / "packed"), seq_length))
    finally:
        packing.WINDOW_TOKENS = before
    found = samples(made.prefix)
    capacity = seq_length + 1
    assert all(0 < len(sample) <= capacity for sample in found)
    pieces = Counter[tuple[int, ...]]()
    for sample in found:
        piece: list[int] = []
        for token in sample:
            piece.append(token)
            if token == EOD:
                pieces[tuple(piece)] += 1
                piece = []
        if piece:
            # Only a full sample ends within a document.
            assert len(sample) == len(piece) == capacity
            pieces[tuple(piece)] += 1
    wanted = Counter[tuple[int, ...]]()
    for document in documents:
        for begin in range(0, len(document), capacity):
            wanted[tuple(document[begin : begin + capacity])] += 1
    assert pieces == wanted
    assert (made.documents, made.tokens, made.packed) == (len(found), sum(map(len, documents)), seq_length)
    described = manifest.describe(made.prefix)
    assert described == made
    counts = json.loads(Path(manifest.sidecar_path(made.prefix)).read_text())["options"]["packing"]
    assert counts["documents"] == len(documents)
    assert counts["cut"] == sum(len(document) > capacity for document in documents)
    assert counts["waste"] == pytest.approx(1 - made.tokens / (len(found) * capacity) if found else 0)
    if window == 10**6:
        rests = [len(document) % capacity for document in documents]
        assert len(found) == sum(len(document) // capacity for document in documents) + plainly(rests, capacity)
    assert not verification.verify(made).findings


def test_what_cannot_be_packed(tmp_path: Path) -> None:
    endless = write(tmp_path / "endless", [[1, 2, EOD], [1, 2]])
    with pytest.raises(BadData, match=f"not all of its documents end with token {EOD}"):
        packing.build(packing.plan(endless, str(tmp_path / "packed"), 8))
    assert not list(tmp_path.glob("packed*"))
    with pytest.raises(BadConfig, match="which token ends a document is not known"):
        packing.plan(write(tmp_path / "unknown", [[1, 2]], eod=None), str(tmp_path / "packed"), 8)
    source = write(tmp_path / "source", [[1, EOD]])
    with pytest.raises(UsageError, match="both read and written"):
        packing.plan(source, source, 8)
    packing.build(packing.plan(source, str(tmp_path / "packed"), 8))
    with pytest.raises(BadConfig, match="is packed, for sequences of 8 tokens"):
        packing.plan(str(tmp_path / "packed"), str(tmp_path / "again"), 8)


def test_the_command(tmp_path: Path) -> None:
    source = write(tmp_path / "source", [[1] * 5 + [EOD], [2] * 3 + [EOD], [3] * 2 + [EOD]])
    command = [sys.executable, "-m", "lt_preprocess", "pack", source, "--seq-length", "8", "-o", str(tmp_path / "packed")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line, end) = map(json.loads, done.stdout.splitlines())
    assert (line["packed"], line["documents"], line["tokens"], end["count"]) == (8, 2, 13, 1)
    assert "3 documents in 2 samples of 8 + 1 tokens, 0 of them cut; 27.778% of the places are empty" in done.stderr
    assert samples(str(tmp_path / "packed")) == [[1] * 5 + [EOD] + [3] * 2 + [EOD], [2] * 3 + [EOD]]
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "up to date" in again.stderr
    assert again.stdout == done.stdout


def test_a_line_of_a_packed_dataset_is_one_that_the_first_readers_take() -> None:
    """They knew these fields, and took no notice of others."""
    known = {"prefix", "documents", "tokens", "dtype", "vocab_size", "eod", "weight"}
    record = manifest.record_of(Dataset("a", 2, 13, "uint16", 1000, EOD, packed=8))
    assert record["v"] == 1
    assert record.keys() - known == {"v", "kind", "packed"}
    assert manifest.parse([json.dumps(record), '{"v":1,"kind":"end","count":1}'], "test") == [
        Dataset("a", 2, 13, "uint16", 1000, EOD, packed=8)
    ]
