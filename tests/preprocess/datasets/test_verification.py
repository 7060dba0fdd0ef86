"""Every defect is found and named, all of them at once, and sound datasets of any origin have none."""

import json
import os
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from lt_preprocess.datasets import decoding, index_verification, merge, shuffle, source_datasets, split, statistics, verification
from lt_preprocess.datasets.block_reader import BlockReader
from lt_shared.console import BadData, NoInput
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.files import storage

Run = Callable[..., subprocess.CompletedProcess[str]]

DOCUMENTS = [[[1, 2], [3, 9]], [], [[4, 5, 6, 9]], [[7, 9]]]
LENGTHS_AT = indexed_dataset.HEADER.size
OFFSETS_AT = LENGTHS_AT + 4 * 4
ENTRIES_AT = OFFSETS_AT + 8 * 4


def write_with_megatron(prefix: Path, documents: list[list[list[int]]], multimodal: bool = False) -> None:
    builder = IndexedDatasetBuilder(f"{prefix}.bin", np.uint16, multimodal)
    for sequences in documents:
        tokens = torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.int64)
        lengths = [len(sequence) for sequence in sequences]
        builder.add_document(tokens, lengths, [0] * len(lengths) if multimodal else None)
    builder.finalize(f"{prefix}.idx")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Four documents and four sequences; 9 ends a document."""
    write_with_megatron(tmp_path / "a", DOCUMENTS)
    return tmp_path / "a"


def describe(prefix: Path, options: dict[str, Any] | None = None, **known: Any) -> None:
    entry = manifest.Dataset(str(prefix), **known)
    record = {"dataset": manifest.record_of(entry), "options": {"append_eod": True} if options is None else options}
    Path(f"{prefix}.json").write_text(json.dumps(record))


def patch(path: str | Path, at: int, format: str, value: Any) -> None:
    with Path(path).open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(f"<{format}", value))


def findings(prefix: Path) -> list[str]:
    result = verification.verify(manifest.Dataset(str(prefix)))
    return [str(finding).removeprefix(f"{prefix.parent}/") for finding in result.findings]


@settings(max_examples=30)
@given(st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=4), max_size=6))
def test_nothing_wrong_with_datasets_of_megatron(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]]
) -> None:
    prefix = tmp_path_factory.mktemp("sound") / "a"
    write_with_megatron(prefix, documents)
    result = verification.verify(manifest.Dataset(str(prefix)))
    assert result.findings == []
    assert (result.documents, result.tokens) == (len(documents), sum(len(s) for document in documents for s in document))


def test_nothing_wrong_with_a_described_dataset(prefix: Path) -> None:
    describe(prefix, documents=4, tokens=10, dtype="uint16", vocab_size=10, eod=9)
    assert findings(prefix) == []


IDX, BIN = "{}.idx", "{}.bin"

DAMAGES: dict[str, tuple[list[tuple[str, int, str, Any]], list[str]]] = {
    "no magic": ([(IDX, 0, "B", 0)], ["a.idx: begins with b'\\x00MIDIDX\\x00\\x00', not with"]),
    "version": ([(IDX, 9, "Q", 2)], ["a.idx: version 2, known is 1"]),
    "dtype code": ([(IDX, 17, "B", 99)], ["a.idx: dtype code 99 is not known"]),
    "other dtype": (
        [(IDX, 17, "B", 4)],
        ["a.idx: wrong offset: 4 of sequence 1, the one before ends at 8, the first of 3", "a.bin: 20 bytes, its index says 40"],
    ),
    "float dtype": ([(IDX, 17, "B", 6)], ["a.idx: tokens are float64", "a.idx: wrong offset", "a.bin: 20 bytes"]),
    "more sequences": ([(IDX, 18, "Q", 5)], ["a.idx: 122 bytes, its header says 134 (5 sequences"]),
    "fewer documents": (
        [(IDX, 26, "Q", 3)],
        ["a.idx: 16 bytes are left over", "a.idx: the document index ends at sequence 2, there are 4"],
    ),
    "negative length": (
        [(IDX, LENGTHS_AT, "i", -2)],
        ["a.idx: negative length: -2 of sequence 0", "a.idx: wrong offset: 4 of sequence 1, the one before ends at -4"],
    ),
    "longer length": (
        [(IDX, LENGTHS_AT + 12, "i", 3)],
        ["a.bin: 20 bytes, its index says 22: it is truncated"],
    ),
    "offset": (
        [(IDX, OFFSETS_AT + 8, "q", 5)],
        ["a.idx: wrong offset: 5 of sequence 1, the one before ends at 4, the first of 2"],
    ),
    "first entry": ([(IDX, ENTRIES_AT, "q", 1)], ["a.idx: the document index begins with 1, not with 0"]),
    "descending entries": (
        [(IDX, ENTRIES_AT + 16, "q", 1)],
        ["a.idx: the document index descends: document 2 begins at sequence 1, the one before at 2"],
    ),
    "entry out of range": (
        [(IDX, ENTRIES_AT + 24, "q", 7)],
        ["a.idx: the document index descends", "a.idx: an entry of the document index is out of range: 7 for document 3 of 4"],
    ),
    "negative first entry": (
        [(IDX, ENTRIES_AT, "q", -1)],
        [
            "a.idx: the document index begins with -1, not with 0",
            "a.idx: an entry of the document index is out of range: -1 for document 0 of 4 sequences",
        ],
    ),
    "no entries": (
        [(IDX, 26, "Q", 0)],
        ["a.idx: 40 bytes are left over", "a.idx: the document index is empty; it begins with 0 even without documents"],
    ),
    "last entry": ([(IDX, ENTRIES_AT + 32, "q", 3)], ["a.idx: the document index ends at sequence 3, there are 4"]),
    "two at once": (
        [(IDX, 9, "Q", 2), (IDX, ENTRIES_AT, "q", 1)],
        ["a.idx: version 2", "a.idx: the document index begins with 1"],
    ),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_columns(prefix: Path, case: str) -> None:
    damages, expected = DAMAGES[case]
    for path, at, format, value in damages:
        patch(path.format(prefix), at, format, value)
    found = findings(prefix)
    assert len(found) == len(expected), found
    for finding, start in zip(found, expected, strict=True):
        assert finding.startswith(start)
    with pytest.raises(BadData):
        indexed_dataset.Reader(str(prefix))


@pytest.mark.parametrize("size", [0, 33, 34, 60, 121])
def test_a_truncated_index(prefix: Path, size: int) -> None:
    os.truncate(f"{prefix}.idx", size)
    [finding] = findings(prefix)
    assert finding.startswith(f"a.idx: {size} bytes, ")


def test_sizes_of_the_files(prefix: Path) -> None:
    with Path(f"{prefix}.bin").open("ab") as file:
        file.write(b"xyz")
    with Path(f"{prefix}.idx").open("ab") as file:
        file.write(b"z")
    assert findings(prefix) == [
        "a.idx: 1 bytes are left over after the document index",
        "a.bin: 23 bytes, its index says 20: 3 bytes are left over",
    ]


@pytest.mark.parametrize("missing", [".bin", ".idx"])
def test_a_missing_file(prefix: Path, missing: str) -> None:
    Path(f"{prefix}{missing}").unlink()
    assert findings(prefix) == [f"a{missing}: missing: the dataset is not finished, or the file was lost"]


def test_nothing_there_and_multimodal(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match=r"nowhere\.idx: no such file"):
        findings(tmp_path / "nowhere")
    write_with_megatron(tmp_path / "modes", DOCUMENTS, multimodal=True)
    with pytest.raises(BadData, match="multimodal"):
        findings(tmp_path / "modes")


def test_tokens_against_the_sidecar(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "TOKENS_AT_ONCE", 3)
    describe(prefix, vocab_size=6, eod=9)
    assert findings(prefix) == [
        "a.json: end of document 9 is beyond the vocabulary of 6 entries",
        "a.bin: token beyond the vocabulary: 9 at token 3, there are 6, the first of 5",
    ]
    describe(prefix, vocab_size=65500, eod=9)
    assert findings(prefix) == ["a.json: a vocabulary of 65500 entries takes int32, the tokens are uint16"]
    patch(f"{prefix}.bin", 14, "H", 8)
    describe(prefix, vocab_size=10, eod=9)
    assert findings(prefix) == ["a.bin: no end of document: document 2 ends with 8, not with 9"]
    describe(prefix, {"append_eod": False}, vocab_size=10, eod=9)
    assert findings(prefix) == []


def write(prefix: Path, dtype: Any, documents: list[list[int]]) -> None:
    with indexed_dataset.Writer(str(prefix), dtype) as writer:
        for tokens in documents:
            writer.append_document(np.array(tokens, dtype))
        writer.publish()


def record_checksums(prefix: Path, **changes: list[int]) -> None:
    """What a writer would have recorded of the files as they are now, with changes."""
    contents = {ending: Path(f"{prefix}.{ending}").read_bytes() for ending in ("bin", "idx")}
    crc32 = {ending: [len(content), zlib.crc32(content)] for ending, content in contents.items()}
    Path(f"{prefix}.json").write_text(json.dumps({"dataset": {"prefix": "a"}, "crc32": crc32 | changes}))


def test_an_empty_dataset(tmp_path: Path) -> None:
    write(tmp_path / "a", np.uint16, [])
    record_checksums(tmp_path / "a")
    assert findings(tmp_path / "a") == []


def test_signed_tokens(tmp_path: Path) -> None:
    """Those of a vocabulary of more than 65,500 entries, which a token can be below."""
    write(tmp_path / "a", np.int32, [[0, 70_000], [69_999, 0]])
    describe(tmp_path / "a", {}, vocab_size=70_001)
    assert findings(tmp_path / "a") == []
    describe(tmp_path / "a", {}, vocab_size=70_000)
    assert findings(tmp_path / "a") == ["a.bin: token beyond the vocabulary: 70000 at token 1, there are 70000"]
    patch(tmp_path / "a.bin", 12, "i", -1)
    describe(tmp_path / "a", {}, vocab_size=70_001)
    assert findings(tmp_path / "a") == ["a.bin: token beyond the vocabulary: -1 at token 3, there are 70001"]


def test_tokens_that_are_no_whole_numbers_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "a", np.uint16, [[1, 2, 3, 4]])
    patch(tmp_path / "a.idx", 17, "B", 6)
    patch(tmp_path / "a.idx", LENGTHS_AT, "i", 1)
    (tmp_path / "a.bin").write_bytes(struct.pack("<d", 1e9))
    describe(tmp_path / "a", {"append_eod": True}, vocab_size=5, eod=4)
    assert findings(tmp_path / "a") == [
        "a.idx: tokens are float64, expected whole numbers",
        "a.json: a vocabulary of 5 entries takes uint16, the tokens are float64",
    ]


def test_tokens_are_not_read_for_nothing(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert findings(prefix) == []
    assert "verifying" not in capsys.readouterr().err
    describe(prefix, vocab_size=10)
    findings(prefix)
    assert capsys.readouterr().err.startswith("lt: verifying: 0.0/0.0 MB (100%), ")


def test_the_end_of_document_is_asked_for_alone(prefix: Path) -> None:
    describe(prefix, eod=9)
    assert findings(prefix) == []
    describe(prefix, eod=7)
    assert findings(prefix) == ["a.bin: no end of document: document 0 ends with 9, not with 7, the first of 3"]
    describe(prefix, vocab_size=9, eod=9)
    assert findings(prefix)[0] == "a.json: end of document 9 is beyond the vocabulary of 9 entries"


def test_a_document_without_text_has_no_end(tmp_path: Path) -> None:
    write(tmp_path / "a", np.uint16, [[], [1, 9], [], [2, 8]])
    describe(tmp_path / "a", eod=9)
    assert findings(tmp_path / "a") == ["a.bin: no end of document: document 3 ends with 8, not with 9"]


def test_of_a_damaged_index_only_ids_are_looked_at(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(f"{prefix}.idx", ENTRIES_AT, "q", 1)
    describe(prefix, vocab_size=9, eod=7)
    expected = [
        "a.idx: the document index begins with 1, not with 0",
        "a.bin: token beyond the vocabulary: 9 at token 3, there are 9, the first of 3",
    ]
    assert findings(prefix) == expected
    for size in (1, 3, 4, 10, 11):
        monkeypatch.setattr(verification, "TOKENS_AT_ONCE", size)
        assert findings(prefix) == expected
    patch(f"{prefix}.bin", 0, "H", 65535)
    for size in (1, 3, 11):
        monkeypatch.setattr(verification, "TOKENS_AT_ONCE", size)
        assert findings(prefix)[1:] == ["a.bin: token beyond the vocabulary: 65535 at token 0, there are 9, the first of 4"]
    describe(prefix, eod=7)
    assert findings(prefix) == expected[:1]


def test_recorded_checksums(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, index = (Path(f"{prefix}.{ending}").read_bytes() for ending in ("bin", "idx"))
    record_checksums(prefix)
    for size in (2, 3, 100):
        monkeypatch.setattr(verification, "TOKENS_AT_ONCE", size)
        assert findings(prefix) == []
    record_checksums(prefix, bin=[20, 5], idx=[len(index), 6])
    assert findings(prefix) == [
        f"a.idx: CRC-32 {zlib.crc32(index):08x}, 00000006 was written: the file was damaged or changed since",
        f"a.bin: CRC-32 {zlib.crc32(tokens):08x}, 00000005 was written: the file was damaged or changed since",
    ]
    record_checksums(prefix, bin=[21, 5], idx=[len(index) - 1, 6])
    assert findings(prefix) == [
        f"a.idx: {len(index)} bytes, {len(index) - 1} were written",
        "a.bin: 20 bytes, 21 were written",
    ]


def test_the_text_is_compared_where_nothing_else_is_wrong(
    tmp_path: Path, demo_tokenizer: Path, build: Callable[..., manifest.Dataset], write_lines: Callable[..., Path]
) -> None:
    """The documents that differ come before the checksum, which only tells that some do."""
    file = write_lines(tmp_path / "a.jsonl", [{"text": "one text"}, {"text": "another one"}])
    made = build([file], demo_tokenizer, tmp_path / "out")
    assert verification.verify(made, None, 2).findings == []
    with Path(f"{made.prefix}.bin").open("r+b") as tokens:
        tokens.write(b"\0\0")
    assert [finding.path for finding in verification.verify(made).findings] == [f"{made.prefix}.bin"]
    first, second = verification.verify(made, demo_tokenizer, 2).findings
    assert first.path == made.prefix
    assert first.message.startswith(f"document 0 ({file}")
    assert (second.path, second.message[:7]) == (f"{made.prefix}.bin", "CRC-32 ")
    Path(f"{tmp_path}/.out_text_document.bin.partial").touch()
    assert len(verification.verify(made, demo_tokenizer, 2).findings) == 2


def test_what_cannot_be_counted_is_not_compared(prefix: Path) -> None:
    Path(f"{prefix}.json").write_text(json.dumps({"dataset": {"prefix": "a", "tokens": 10}, "counts": {"tokens": 10}}))
    patch(f"{prefix}.idx", LENGTHS_AT + 12, "i", -2)
    assert findings(prefix) == ["a.idx: negative length: -2 of sequence 3"]


def test_each_block_of_an_index_of_another_type_is_looked_at(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_verification, "ENTRIES_AT_ONCE", 1)
    patch(f"{prefix}.idx", 17, "B", 99)
    patch(f"{prefix}.idx", LENGTHS_AT + 4, "i", -2)
    patch(f"{prefix}.idx", LENGTHS_AT + 12, "i", -3)
    assert findings(prefix) == [
        "a.idx: dtype code 99 is not known",
        "a.idx: negative length: -2 of sequence 1, the first of 2",
    ]


def test_a_malformed_sidecar_is_one_finding_among_others(prefix: Path) -> None:
    Path(f"{prefix}.bin").unlink()
    Path(f"{prefix}.json").write_text(json.dumps({"dataset": {}}))
    assert [finding.partition(":")[0] for finding in findings(prefix)] == ["a.bin", "a.json"]
    Path(f"{prefix}.json").write_text("[")
    assert [finding.partition(":")[0] for finding in findings(prefix)] == ["a.bin", "a.json"]


def test_no_files_are_left_over_on_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local files of such a name have nothing to do with it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "memory:/leftovers").mkdir(parents=True)
    (tmp_path / "memory:/leftovers/.a.bin.partial").touch()
    write(tmp_path / "a", np.uint16, [[1]])
    for ending in ("bin", "idx"):
        storage.write_bytes(f"memory://leftovers/a.{ending}", (tmp_path / f"a.{ending}").read_bytes())
    assert verification.verify(manifest.Dataset("memory://leftovers/a")).findings == []


def test_what_is_said_of_the_result(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prefix.parent)
    sound = verification.verify(manifest.Dataset("a"))
    assert sound.summary() == "4 documents, 10 tokens, nothing wrong"
    assert sound.to_record() == {
        "v": 1, "kind": "verification", "prefix": str(prefix), "documents": 4, "tokens": 10, "findings": [],
    }  # fmt: skip
    assert verification.Verification("a", findings=[verification.Finding("b", "c")]).summary() == "1 finding"
    two = verification.Verification("a", findings=[verification.Finding("b", "c"), verification.Finding("d", "e")])
    assert two.summary() == "2 findings"
    assert two.to_record()["findings"] == [{"path": "b", "message": "c"}, {"path": "d", "message": "e"}]


def test_ids_are_looked_at_also_when_the_index_is_damaged(prefix: Path) -> None:
    describe(prefix, {}, vocab_size=9)
    patch(f"{prefix}.idx", ENTRIES_AT, "q", 1)
    assert [finding.partition(":")[0] for finding in findings(prefix)] == ["a.idx", "a.bin"]


def test_counts_of_the_sidecar(prefix: Path) -> None:
    describe(prefix, {}, documents=3, tokens=11, dtype="int32")
    assert findings(prefix) == [
        "a.json: documents 3, the dataset has 4",
        "a.json: tokens 11, the dataset has 10",
        "a.json: dtype int32, the dataset has uint16",
    ]
    Path(f"{prefix}.json").write_text("[")
    [finding] = findings(prefix)
    assert finding.startswith("a.json: not a dataset description")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"counts": {"documents": 4, "sequences": 4, "tokens": 10, "bad_lines": 3}}, []),
        ({"counts": {"documents": 5, "sequences": 4, "tokens": 10}}, ["a.json: counts: documents 5, the dataset has 4"]),
        ({"counts": {"documents": 4, "sequences": 3, "tokens": 10}}, ["a.json: counts: sequences 3, the dataset has 4"]),
        ({"counts": {"documents": 4, "sequences": 4, "tokens": 9}}, ["a.json: counts: tokens 9, the dataset has 10"]),
        ({"options": {"append_eod": True}}, ["a.json: made with --append-eod, but no end-of-document token is named"]),
        ({"options": {"append_eod": False}}, []),
        ({"options": None, "counts": None}, []),
        ({"v": 1}, ["a.json: version 1, known is 2"]),
        ({"v": 2}, []),
        ({"v": 3}, ["a.json: version 3, known is 2"]),
    ],
)
def test_the_rest_of_the_sidecar(prefix: Path, change: dict[str, Any], expected: list[str]) -> None:
    Path(f"{prefix}.json").write_text(json.dumps({"dataset": {"prefix": "a"}} | change))
    assert findings(prefix) == expected


MALFORMED: list[Any] = [
    5,
    [],
    {},
    *({"dataset": dataset} for dataset in (None, "x", {}, {"prefix": 5})),
    *({"dataset": {"prefix": "a", "tokenizer": tokenizer}} for tokenizer in (5, "x", [1], {"name": 1, "sha256": 2})),
    *({"dataset": {"prefix": "a"} | wrong} for wrong in ({"dtype": 5}, {"tokens": "x"}, {"eod": True}, {"weight": "x"})),
    *({"dataset": {"prefix": "a"}, "options": options} for options in (5, "x", [1], {"json_keys": 5}, {"json_keys": ["a", 1]})),
    *({"dataset": {"prefix": "a"}, "options": options} for options in ({"json_keys": []}, {"shard": 5}, {"shard": {"index": 0}})),
    *({"dataset": {"prefix": "a"}, "sources": sources} for sources in ("x", 5, {}, [5], [{}], [{"path": 5}])),
    *({"dataset": {"prefix": "a"}, "part": part} for part in ("x", [], {}, {"index": "x", "is_last": True})),
    *({"dataset": {"prefix": "a"}, "counts": counts} for counts in ("x", [], {"documents": "x"})),
    {"dataset": {"prefix": "a"}, "run": 5},
]


@pytest.mark.parametrize("record", MALFORMED, ids=json.dumps)
def test_a_malformed_sidecar_is_a_finding_and_refused_elsewhere(prefix: Path, record: Any) -> None:
    Path(f"{prefix}.json").write_text(json.dumps(record))
    [finding] = findings(prefix)
    assert finding.startswith("a.json: not a dataset description")
    [finding] = map(str, verification.verify(manifest.Dataset(str(prefix), 4, 10)).findings)
    assert finding.startswith(f"{prefix}.json: not a dataset description")
    for refuse in (
        lambda: merge.plan([str(prefix)], f"{prefix}-out"),
        lambda: shuffle.plan(str(prefix), f"{prefix}-out", 0),
        lambda: split.plan(str(prefix), f"{prefix}-out", "1,1", "b,c", 0),
        lambda: statistics.read(*source_datasets.listed([str(prefix)]), None, 1),
        lambda: list(decoding.records(str(prefix), None, None)),
    ):
        with pytest.raises(BadData, match=r"a\.json: not a dataset description"):
            refuse()


def test_what_an_unfinished_run_left(prefix: Path) -> None:
    Path(f"{prefix.parent}/.a.bin.partial").touch()
    Path(f"{prefix.parent}/.ab.bin.partial").touch()
    assert findings(prefix) == [
        ".a.bin.partial: left by a run that is still running or was killed: run its command again, or delete it"
    ]


@settings(max_examples=60)
@given(
    documents=st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=3), max_size=3), max_size=4),
    extension=st.sampled_from([".idx", ".idx", ".idx", ".bin"]),
    at=st.floats(0, 1),
    change=st.one_of(st.integers(0, 255), st.just("cut"), st.binary(min_size=1, max_size=9)),
)
def test_what_the_readers_refuse_is_found(
    tmp_path_factory: pytest.TempPathFactory,
    documents: list[list[list[int]]],
    extension: str,
    at: float,
    change: int | str | bytes,
) -> None:
    """One byte changed, the end cut off or bytes added: no reader refuses what has no finding, and nothing crashes."""
    prefix = tmp_path_factory.mktemp("damage") / "a"
    write_with_megatron(prefix, documents)
    path = Path(f"{prefix}{extension}")
    content = bytearray(path.read_bytes())
    place = int(at * max(len(content) - 1, 0))
    if isinstance(change, bytes):
        content += change
    elif change == "cut":
        del content[place:]
    elif content:
        content[place] = int(change)
    path.write_bytes(content)
    try:
        found = verification.verify(manifest.Dataset(str(prefix))).findings
    except BadData as error:
        assert "multimodal" in str(error)
        return
    if not found:
        reader = indexed_dataset.Reader(str(prefix))
        with BlockReader(str(prefix)) as blocks:
            assert sum(block.documents for block in blocks.blocks()) == reader.documents
    else:
        with pytest.raises(BadData), BlockReader(str(prefix)) as blocks:
            list(blocks.blocks())


def test_blocks_of_any_size_find_the_same(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(f"{prefix}.idx", OFFSETS_AT + 16, "q", 5)
    patch(f"{prefix}.idx", LENGTHS_AT + 12, "i", -1)
    patch(f"{prefix}.idx", ENTRIES_AT + 16, "q", 1)
    at_once = findings(prefix)
    assert len(at_once) == 3
    for size in (1, 2, 3):
        monkeypatch.setattr(index_verification, "ENTRIES_AT_ONCE", size)
        assert findings(prefix) == at_once


def test_command(run: Run, prefix: Path) -> None:
    write_with_megatron(prefix.parent / "b", DOCUMENTS)
    os.truncate(f"{prefix}.bin", 6)
    result = run("verify", "a", "b.idx", cwd=prefix.parent)
    assert (result.returncode, result.stdout) == (1, "a.bin: 6 bytes, its index says 20: it is truncated\n")
    assert "1 finding" in result.stderr
    assert f"{prefix.parent}/b: 4 documents, 10 tokens, nothing wrong" in result.stderr
    result = run("verify", "a", "b", "--json", cwd=prefix.parent)
    first, second = map(json.loads, result.stdout.splitlines())
    assert (result.returncode, first["kind"], len(first["findings"]), second["findings"]) == (1, "verification", 1, [])
    assert first["findings"][0] == {"path": "a.bin", "message": "6 bytes, its index says 20: it is truncated"}
    assert run("verify", "b", cwd=prefix.parent).returncode == 0
    assert run("verify", "nowhere", cwd=prefix.parent).returncode == 66
    entry = manifest.record_of(manifest.Dataset("b", 4, 11))
    lines = f'{json.dumps(entry)}\n{{"v":1,"kind":"end","count":1}}\n'
    result = run("verify", "-", cwd=prefix.parent, input=lines)
    assert (result.returncode, result.stdout) == (1, "b.json: tokens 11, the dataset has 10\n")
