"""A split keeps order and whole documents, puts equal documents together, and does not depend on what else is there."""

import json
import os
import subprocess
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset

from lt_preprocess.datasets import split
from lt_shared.console import BadData, UsageError
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]
Documents = list[list[int]]


def write(prefix: Path, documents: Documents) -> str:
    with indexed_dataset.Writer(str(prefix), np.uint16) as writer:
        for tokens in documents:
            writer.append_document(np.array(tokens, np.int64))
        writer.publish()
    return str(prefix)


def read(prefix: str | Path) -> Documents:
    reader = indexed_dataset.Reader(str(prefix))
    return [reader.document(number).tolist() for number in range(reader.documents)]


def parts(directory: Path, documents: Documents, ratios: str = "8,1,1", seed: int = 0, name: str = "a") -> list[Documents]:
    made = split.build(split.plan(write(directory / name, documents), str(directory / f"{name}-out"), ratios, None, seed))
    return [read(part.prefix) for part in made]


@pytest.fixture
def documents() -> Documents:
    random = np.random.default_rng(0)
    return [[number, *random.integers(0, 65536, number % 9).tolist()] for number in range(3000)]


def test_every_document_once_in_order_and_sizes_as_asked(tmp_path: Path, documents: Documents) -> None:
    found = parts(tmp_path, documents)
    assert sorted(document for part in found for document in part) == sorted(documents)
    for part, share in zip(found, (0.8, 0.1, 0.1), strict=True):
        assert [document[0] for document in part] == sorted(document[0] for document in part)
        assert abs(len(part) / len(documents) - share) < 0.03


def test_equal_documents_land_together_whatever_else_is_there(tmp_path: Path, documents: Documents) -> None:
    one = parts(tmp_path, documents)
    other = parts(tmp_path, [*documents[::-2], *documents[:500]], name="b")
    where = {tuple(document): number for number, part in enumerate(one) for document in part}
    assert all(where[tuple(document)] == number for number, part in enumerate(other) for document in part)


def test_the_parts_are_pinned() -> None:
    """Where a document goes is part of the interface: no validation document may enter training with an upgrade."""
    thresholds = split.thresholds_of([Fraction(1, 4)] * 4)
    found = [split.part_of(np.array([number, 1, 2], np.uint16), thresholds, 0) for number in range(16)]
    assert found == [0, 1, 3, 2, 3, 1, 3, 1, 0, 2, 2, 0, 1, 2, 0, 1]


def test_another_seed_splits_the_parts_again(tmp_path: Path, documents: Documents) -> None:
    [train, _] = parts(tmp_path, documents, "1,1")
    assert [len(part) > 0 for part in parts(tmp_path, train, "1,1", seed=1, name="b")] == [True, True]
    with pytest.raises(BadData, match="no text would be left for this part"):
        parts(tmp_path, train, "1,1", seed=0, name="c")


@settings(max_examples=60)
@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=5), st.integers(0, 2**64 - 1))
def test_every_hash_has_a_part(ratios: list[int], value: int) -> None:
    shares = [Fraction(ratio, sum(ratios)) for ratio in ratios]
    thresholds = split.thresholds_of(shares)
    assert thresholds == sorted(thresholds)
    assert thresholds[-1] == 2**64
    assert value < thresholds[-1]


def test_documents_of_several_sequences_stay_whole(tmp_path: Path) -> None:
    with indexed_dataset.Writer(str(tmp_path / "a"), np.uint16) as writer:
        for number in range(200):
            writer.append(np.array([number, 1, 2]), np.array([1, 0, 2]), np.array([3]))
        writer.append(np.array([]), np.array([], np.int64), np.array([0]))
        writer.publish()
    made = split.build(split.plan(str(tmp_path / "a"), str(tmp_path / "out"), "1,1", "x,y", 0))
    assert sum(part.documents or 0 for part in made) == 201
    for part in made:
        dataset = IndexedDataset(part.prefix)
        assert set(dataset.sequence_lengths.tolist()) == {0, 1, 2}
        assert len(dataset.document_indices) == (part.documents or 0) + 1


def test_manifest_names_and_up_to_date(run: Run, tmp_path: Path, documents: Documents) -> None:
    write(tmp_path / "a", documents)
    arguments = ["split", "a", "--ratios", "0.9, 0.1", "--names", "train,held-out", "-o", "out"]
    plan = json.loads(run(*arguments, "--dry-run", cwd=tmp_path).stdout)
    assert (plan["ratios"], plan["up_to_date"], sorted(os.listdir(tmp_path))) == ([0.9, 0.1], False, ["a.bin", "a.idx"])
    first = run(*arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    train, held_out, end = map(json.loads, first.stdout.splitlines())
    assert (train["prefix"], held_out["prefix"], end["count"]) == (f"{tmp_path}/out_train", f"{tmp_path}/out_held-out", 2)
    assert train["documents"] + held_out["documents"] == 3000
    again = run(*arguments, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert "up to date" in again.stderr
    (tmp_path / "out_held-out.idx").unlink()
    assert "up to date" not in run(*arguments, cwd=tmp_path).stderr
    assert "up to date" not in run(*arguments, "--seed", "1", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("ratios", "names", "message"),
    [
        ("98;1", None, "not numbers"),
        ("98", None, "two or more numbers"),
        ("98,0", None, "two or more numbers above 0"),
        ("98,-1", None, "two or more numbers above 0"),
        ("1,1,1,1", None, "4 parts need --names"),
        ("1,1", "a", "expected 2 different names"),
        ("1,1", "a,a", "expected 2 different names"),
        ("1,1", "a,", "expected 2 different names"),
    ],
)
def test_ratios_and_names_that_make_no_sense(tmp_path: Path, ratios: str, names: str | None, message: str) -> None:
    write(tmp_path / "a", [[1]])
    with pytest.raises(UsageError, match=message):
        split.plan(str(tmp_path / "a"), str(tmp_path / "out"), ratios, names, 0)


def test_the_counts_of_removed_documents_stay_with_the_source(tmp_path: Path, documents: Documents) -> None:
    """In each part they would be counted again."""
    prefix = write(tmp_path / "a", documents)
    dataset = manifest.Dataset(prefix, len(documents), sum(map(len, documents)), "uint16", removed={"too_short": 7})
    Path(f"{prefix}.json").write_text(json.dumps({"v": 2, "dataset": manifest.record_of(dataset)}))
    results = split.build(split.plan(prefix, str(tmp_path / "out"), "8,1,1", None, 0))
    assert [(result.removed, manifest.describe(result.prefix).removed) for result in results] == [(None, None)] * 3


def test_too_few_documents_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"a-out_(test|valid): no text would be left"):
        parts(tmp_path, [[1], [2]])
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx"]
