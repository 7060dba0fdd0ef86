"""A shuffle keeps every document whole, depends on the seed alone, and leaves nothing behind."""

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDataset

from lt_preprocess.datasets import shuffle
from lt_shared.console import BadConfig, UsageError
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset

Run = Callable[..., subprocess.CompletedProcess[str]]
Documents = list[list[list[int]]]

documents_of_uint16 = st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=4), max_size=20)


def write(prefix: Path, documents: Documents, dtype: type[np.generic] = np.uint16) -> str:
    with indexed_dataset.Writer(str(prefix), dtype) as writer:
        for sequences in documents:
            tokens = np.array([token for sequence in sequences for token in sequence], np.int64)
            writer.append(tokens, np.array([len(sequence) for sequence in sequences], np.int64), np.array([len(sequences)]))
        writer.publish()
    return str(prefix)


def read(prefix: str | Path) -> Documents:
    """The documents as megatron-core's reader sees the sequences."""
    reader = indexed_dataset.Reader(str(prefix))
    sequences = [
        reader.tokens[offset // reader.dtype.itemsize :][:length].tolist()
        for offset, length in zip(reader.sequence_offsets.tolist(), reader.sequence_lengths.tolist(), strict=True)
    ]
    entries = reader.document_indices.tolist()
    return [sequences[first:last] for first, last in itertools.pairwise(entries)]


def shuffled(source: str | Path, output: Path, seed: int = 0) -> manifest.Dataset:
    return shuffle.build(shuffle.plan(str(source), str(output), seed))


def expected_order(count: int, seed: int) -> list[int]:
    keys = np.random.PCG64(seed).random_raw(count)
    return np.argsort(keys, kind="stable").tolist()


@settings(max_examples=40)
@given(documents=documents_of_uint16, seed=st.integers(0, 2**64 - 1))
def test_documents_in_the_order_of_their_keys(tmp_path_factory: pytest.TempPathFactory, documents: Documents, seed: int) -> None:
    directory = tmp_path_factory.mktemp("shuffle")
    shuffled(write(directory / "a", documents), directory / "out", seed)
    assert read(directory / "out") == [documents[number] for number in expected_order(len(documents), seed)]
    assert sorted(os.listdir(directory)) == ["a.bin", "a.idx", "out.bin", "out.idx", "out.json"]


@pytest.mark.parametrize("bucket_bytes", [1, 500, 10_000, 1 << 30])
def test_the_size_of_the_buckets_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_bytes: int) -> None:
    """Of one byte: every level of buckets down to single documents."""
    monkeypatch.setattr(shuffle, "BUCKET_BYTES", bucket_bytes)
    monkeypatch.setattr(shuffle, "MOST_BUCKET_BITS", 3)
    monkeypatch.setattr(shuffle, "TOKENS_AT_ONCE", 100)
    documents: Documents = [[[number] * (number % 7)] * (number % 3) for number in range(400)]
    made = shuffled(write(tmp_path / "a", documents, np.int32), tmp_path / "out", 5)
    assert read(tmp_path / "out") == [documents[number] for number in expected_order(400, 5)]
    assert (made.documents, made.dtype) == (400, "int32")
    dataset = IndexedDataset(str(tmp_path / "out"))
    assert len(dataset.document_indices) == 401


def test_the_order_is_pinned(tmp_path: Path) -> None:
    """The order for a seed is part of the interface: a run that is repeated years later must give the same bytes."""
    shuffled(write(tmp_path / "a", [[[number]] for number in range(8)]), tmp_path / "out", 42)
    assert [sequence for [[sequence]] in read(tmp_path / "out")] == [4, 1, 3, 6, 0, 7, 2, 5]


def test_up_to_date_seed_and_dry_run(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "a", [[[number]] for number in range(50)])
    plan = json.loads(run("shuffle", "a", "-o", "out", "--dry-run", cwd=tmp_path).stdout)
    assert (plan["command"], plan["seed"], plan["up_to_date"]) == ("shuffle", 0, False)
    first = run("shuffle", "a", "-o", "out", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    contents = (tmp_path / "out.bin").read_bytes()
    again = run("shuffle", "a.idx", "-o", "out", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert "up to date" in again.stderr
    assert "up to date" not in run("shuffle", "-", "-o", "out", "--seed", "1", cwd=tmp_path, input="a\n").stderr
    assert (tmp_path / "out.bin").read_bytes() != contents


def test_what_is_known_of_the_source_is_kept(tmp_path: Path) -> None:
    entry = manifest.Dataset("a", 1, 1, "uint16", 50257, 50256, manifest.Tokenizer("gpt2", "x", "/gpt2"), 1.0)
    write(tmp_path / "a", [[[1]]])
    record = {"dataset": manifest.record_of(entry), "options": {"json_key": "text", "append_eod": False}}
    (tmp_path / "a.json").write_text(json.dumps(record))
    made = shuffled(tmp_path / "a", tmp_path / "out")
    assert made == manifest.describe(str(tmp_path / "out"))
    assert (made.tokenizer, made.vocab_size, made.eod) == (entry.tokenizer, 50257, 50256)
    sidecar = json.loads((tmp_path / "out.json").read_bytes())
    assert sidecar["options"] == record["options"]
    assert sidecar["derivation"]["sources"][0]["prefix"] == str(tmp_path / "a")


def test_refusals(tmp_path: Path) -> None:
    write(tmp_path / "a", [[[1]]])
    with pytest.raises(UsageError, match="both read and written"):
        shuffle.plan(str(tmp_path / "a"), str(tmp_path / "a"), 0)
    with pytest.raises(BadConfig, match="local"):
        shuffle.plan(str(tmp_path / "a"), "memory://out", 0)
    (tmp_path / "list").write_text("a\nb\n")
    with pytest.raises(UsageError, match="2 datasets, this command works on one"):
        shuffle.plan(f"@{tmp_path}/list", str(tmp_path / "out"), 0)


def test_nobody_else_can_enter_the_directory_of_the_buckets(tmp_path: Path) -> None:
    """Whatever the umask allows: the order of the documents, and what they are, is not for others to change."""
    before = os.umask(0)
    try:
        with shuffle.buckets_directory(str(tmp_path / "out")) as directory:
            assert directory.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_killed_and_started_again(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(0, 200, 100_000)
    with indexed_dataset.Writer(str(tmp_path / "a"), np.uint16) as writer:
        writer.append(random.integers(0, 65536, int(lengths.sum())), lengths, np.ones(len(lengths), np.int64))
        writer.publish()
    command = [sys.executable, "-m", "lt_preprocess", "shuffle", str(tmp_path / "a"), "-o", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (tmp_path / ".out.buckets/0-0").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "out.idx").exists()
    assert (tmp_path / ".out.buckets").exists()
    subprocess.run(command, check=True, capture_output=True)
    digest = hashlib.sha256((tmp_path / "out.bin").read_bytes()).digest()
    reader = indexed_dataset.Reader(str(tmp_path / "a"))
    order = expected_order(len(lengths), 0)
    expected = hashlib.sha256()
    for number in order:
        expected.update(reader.document(number).tobytes())
    assert digest == expected.digest()
    assert sorted(os.listdir(tmp_path)) == ["a.bin", "a.idx", "out.bin", "out.idx", "out.json"]
