"""Token ids that datatrove, OLMo-core, mosaicml-streaming and litdata wrote become the dataset that Megatron's builder makes."""

import gzip
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from lt_preprocess.datasets import token_import
from lt_preprocess.readers import token_files
from lt_shared.console import BadData, NoInput, UsageError

Run = Callable[..., subprocess.CompletedProcess[str]]
SAMPLES = Path(__file__).parents[1] / "readers" / "samples"
# As in samples/write.py.
TOKENS = [[5, 6, 7, 0], [0], [65535, 1, 2, 3, 4, 0], [9, 9, 0]]


def expected_bytes(directory: Path, documents: Sequence[Sequence[int]], dtype: Any) -> tuple[bytes, bytes]:
    """What Megatron writes: one sequence for each document that has tokens."""
    builder = IndexedDatasetBuilder(str(directory / "expected.bin"), dtype=dtype)
    for document in documents:
        builder.add_document(np.array(document, dtype), [len(document)] if len(document) else [])
    builder.finalize(str(directory / "expected.idx"))
    return (directory / "expected.bin").read_bytes(), (directory / "expected.idx").read_bytes()


def imported(
    directory: Path, *sources: Path, tokenizer: str | None = None, eod_token: str | None = None, dtype: str | None = None
) -> tuple[bytes, bytes]:
    plan = token_import.plan([str(source) for source in sources], str(directory / "out"), tokenizer, eod_token, dtype)
    token_import.build(plan)
    return (directory / "out.bin").read_bytes(), (directory / "out.idx").read_bytes()


@pytest.mark.parametrize(
    ("name", "dtype", "result"),
    [
        ("datatrove", None, np.uint16),
        ("streaming/ndarray", None, np.uint16),
        ("streaming/uint16", None, np.uint16),
        ("streaming/bytes", "int64", np.int32),
        ("litdata/int32", None, np.int32),
        ("litdata/numpy", None, np.uint16),
        ("litdata/dictionary", None, np.uint16),
    ],
)
@pytest.mark.parametrize("block_bytes", [4, 16 << 20])
def test_tokens_of_a_sample(
    tmp_path: Path, name: str, dtype: str | None, result: Any, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "_BLOCK_BYTES", block_bytes)
    assert imported(tmp_path, SAMPLES / name, dtype=dtype) == expected_bytes(tmp_path, TOKENS, result)


@pytest.mark.parametrize("block_bytes", [8, 16 << 20])
@pytest.mark.parametrize("with_header", [False, True])
def test_documents_of_olmo_end_with_a_token(
    tmp_path: Path, with_header: bool, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_files, "_BLOCK_BYTES", block_bytes)
    tokens = np.array([7, 0, 70000, 2, 0, 0, 3, 4], np.uint32)
    if with_header:
        np.save(tmp_path / "a.npy", tokens)
    else:
        tokens.tofile(tmp_path / "a.npy")
    (tmp_path / "b.npy").write_bytes((tmp_path / "a.npy").read_bytes())
    documents = [[7, 0], [70000, 2, 0], [0], [3, 4]] * 2
    content = imported(tmp_path, tmp_path, eod_token="0", dtype=None if with_header else "uint32")
    assert content == expected_bytes(tmp_path, documents, np.int32)


def test_metadata_beside_tokens_is_authoritative(tmp_path: Path) -> None:
    np.array([7, 0, 5, 5, 2, 0], np.uint16).tofile(tmp_path / "a.npy")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"0,2,id,src,0\n2,4,id,src,1\n4,6,id,src,2\n"))
    content = imported(tmp_path, tmp_path / "a.npy", eod_token="0", dtype="uint16")
    assert content == expected_bytes(tmp_path, [[7, 0], [5, 5], [2, 0]], np.uint16)
    for lines, message in [
        (b"0,2\n3,6\n", r"a.csv.gz, line 2: a document from b'3' to b'6'"),
        (b"0,2\n2,4\n", r"its documents end at token 4, .*a.npy has 6"),
        (b"x,2\n", r"line 1: a document from b'x' to b'2'"),
    ]:
        (tmp_path / "a.csv.gz").write_bytes(gzip.compress(lines))
        with pytest.raises(BadData, match=message):
            imported(tmp_path, tmp_path / "a.npy", eod_token="0", dtype="uint16")


def test_empty_documents_of_datatrove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.array([7, 8, 9], np.uint32).tofile(tmp_path / "a.ds")
    np.array([0, 2, 2, 2, 3, 3], np.uint64).tofile(tmp_path / "a.ds.index")
    for block_bytes in (4, 8, 1 << 20):
        monkeypatch.setattr(token_files, "_BLOCK_BYTES", block_bytes)
        content = imported(tmp_path, tmp_path / "a.ds")
        assert content == expected_bytes(tmp_path, [[], [7, 8], [], [], [9], []], np.int32)


def test_what_is_damaged_or_unknown_is_named(tmp_path: Path) -> None:
    def write(tokens: bytes, ends: bytes) -> None:
        (tmp_path / "a.ds").write_bytes(tokens)
        (tmp_path / "a.ds.index").write_bytes(ends)

    ends = np.array([2, 3], np.uint64).tobytes()
    for tokens, index, message in [
        (bytes(7), ends, "a.ds: 7 bytes are not the 3 tokens that its .index counts"),
        (bytes(6), ends[:-1], "a.ds.index: is cut off: 15 bytes"),
        (bytes(6), ends[::-1], "a document ends before it begins|are not the"),
    ]:
        write(tokens, index)
        with pytest.raises(BadData, match=message) as error:
            imported(tmp_path, tmp_path / "a.ds")
        assert error.value.hint
    np.array([5, 6, 0], np.uint16).tofile(tmp_path / "b.npy")
    with pytest.raises(UsageError, match=r"b.npy: nothing says of which type its tokens are"):
        imported(tmp_path, tmp_path / "b.npy", eod_token="0")
    with pytest.raises(UsageError, match=r"b.npy: nothing says where its documents end"):
        imported(tmp_path, tmp_path / "b.npy", dtype="uint16")
    with pytest.raises(BadData, match=r"b.npy: its size is no multiple of 4 bytes"):
        imported(tmp_path, tmp_path / "b.npy", eod_token="0", dtype="uint32")
    np.array([5, -1, 0], np.int64).tofile(tmp_path / "b.npy")
    with pytest.raises(BadData, match=r"b.npy: token 1 is -1, expected 0 to 2147483647"):
        imported(tmp_path, tmp_path / "b.npy", eod_token="0", dtype="int64")
    np.save(tmp_path / "b.npy", np.zeros((2, 2)))
    with pytest.raises(BadData, match=r"an array of float64 and shape \(2, 2\)"):
        imported(tmp_path, tmp_path / "b.npy", eod_token="0")
    (tmp_path / "c").write_bytes(b'{"text": "one"}\n')
    with pytest.raises(BadData, match="c: no file of token ids"):
        imported(tmp_path, tmp_path / "c")
    with pytest.raises(UsageError, match="--eod-token <eos>: only --tokenizer knows its number"):
        imported(tmp_path, tmp_path / "b.npy", eod_token="<eos>")
    (tmp_path / "d").mkdir()
    with pytest.raises(NoInput, match="d: no file of token ids below"):
        imported(tmp_path, tmp_path / "d")
    assert not (tmp_path / "out.bin").exists()


def test_the_tokens_of_a_tokenizer(run: Run, tmp_path: Path, demo_tokenizer: Path, texts: list[str]) -> None:
    """Tokens that lt-preprocess made come back as the same dataset, with text, verified, and with file and row."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:99]))
    options = ["--tokenizer", demo_tokenizer]
    made = run(tmp_path / "a.jsonl", *options, "--append-eod", "-o", tmp_path / "a", "--plain").stdout.strip()
    np.fromfile(f"{made}.bin", np.uint16).tofile(tmp_path / "a.npy")
    done = run("import", tmp_path / "a.npy", *options, "-o", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    for extension in (".bin", ".idx"):
        assert (tmp_path / f"b{extension}").read_bytes() == Path(f"{made}{extension}").read_bytes()
    [dataset, _] = map(json.loads, done.stdout.splitlines())
    [first, _] = map(json.loads, run(tmp_path / "a.jsonl", *options, "--append-eod", "-o", tmp_path / "a").stdout.splitlines())
    assert {**dataset, "prefix": ""} == {**first, "prefix": ""}
    assert run("cat", tmp_path / "b").stdout == run("cat", made).stdout
    assert run("verify", tmp_path / "b").returncode == 0
    place = json.loads(run("cat", "--where", "--documents", "7", tmp_path / "b").stdout)
    assert (place["path"], place["row"]) == (str(tmp_path / "a.npy"), 8)
    assert "up to date" in run("import", tmp_path / "a.npy", *options, "-o", tmp_path / "b").stderr
    np.array([9999], np.uint16).tofile(tmp_path / "c.npy")
    done = run("import", tmp_path / "c.npy", *options, "-o", tmp_path / "c")
    assert done.returncode == 65
    assert "c.npy: token 0 is 9999, expected 0 to " in done.stderr


@pytest.mark.parametrize("dtype", ["uint32", "int64"])
def test_tokens_wider_than_the_vocabulary_needs(tmp_path: Path, demo_tokenizer: Path, dtype: str) -> None:
    tokens = np.arange(1, 100).astype(dtype)
    tokens.tofile(tmp_path / "a.npy")
    with pytest.raises(UsageError, match=r"a.npy: every second uint16 is 0"):
        imported(tmp_path, tmp_path / "a.npy", tokenizer=str(demo_tokenizer))
    content = imported(tmp_path, tmp_path / "a.npy", tokenizer=str(demo_tokenizer), dtype=dtype)
    assert content == expected_bytes(tmp_path, [tokens.tolist()], np.uint16)
    imported(tmp_path, tmp_path / "a.npy", tokenizer=str(demo_tokenizer), dtype="uint16")
    assert (tmp_path / "out.bin").read_bytes() == (tmp_path / "a.npy").read_bytes()
    np.arange(1, 100, dtype=np.uint16).tofile(tmp_path / "b.npy")
    imported(tmp_path, tmp_path / "b.npy", tokenizer=str(demo_tokenizer))
