"""Whole runs: files equal to megatron-core's, no repeated work, and nothing that looks finished after a kill."""

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tiktoken
import torch
import zstandard
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from lt_preprocess.pipeline import run as runs
from lt_preprocess.pipeline import sidecar
from lt_preprocess.pipeline.plan import Plan
from lt_preprocess.readers.slices import Slice
from lt_shared.console import BadConfig, BadData, NoInput, UsageError
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset

WriteLines = Callable[[Path, list[Any]], Path]
Planned = Callable[..., Plan]
Build = Callable[..., manifest.Dataset]
Run = Callable[..., subprocess.CompletedProcess[str]]


def digests(prefix: str) -> list[str]:
    return [hashlib.sha256(Path(f"{prefix}{end}").read_bytes()).hexdigest() for end in (".bin", ".idx")]


def leftovers(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if not path.name.endswith((".jsonl", ".gz", ".zst"))]


def megatron_digests(directory: Path, documents: list[list[list[int]]], dtype: Any) -> list[str]:
    """The digests of the files that megatron-core's builder writes for the sequences of each document."""
    builder = IndexedDatasetBuilder(str(directory / "megatron.bin"), dtype=dtype)
    for sequences in documents:
        tokens = [number for sequence in sequences for number in sequence]
        builder.add_document(torch.tensor(tokens, dtype=torch.int64), [len(sequence) for sequence in sequences])
    builder.finalize(str(directory / "megatron.idx"))
    return digests(str(directory / "megatron"))


@pytest.mark.parametrize("append_eod", [False, True])
def test_files_equal_those_of_megatron_core(
    tmp_path: Path,
    corpus: Path,
    demo_tokenizer: Path,
    demo_reference: tiktoken.Encoding,
    texts: list[str],
    append_eod: bool,
    build: Build,
) -> None:
    datasets = build([corpus], demo_tokenizer, tmp_path / "ours", append_eod=append_eod)
    ending = [2047] if append_eod else []
    documents = [[[*ids, *ending]] for ids in demo_reference.encode_ordinary_batch(texts)]
    assert digests(datasets.prefix) == megatron_digests(tmp_path, documents, np.uint16)
    assert (datasets.documents, datasets.tokens, datasets.dtype) == (len(texts), sum(len(ids) for [ids] in documents), "uint16")


def test_large_vocabularies_are_written_as_int32(
    tmp_path: Path, llama3_model: Path, write_lines: WriteLines, build: Build
) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": "Hello world"}, {"text": ""}, {"text": ["a", "", "b c"]}])
    datasets = build([file], llama3_model, tmp_path / "ours", append_eod=True)
    documents = [[[9906, 1917, 128001]], [], [[64], [65, 272, 128001]]]
    assert digests(datasets.prefix) == megatron_digests(tmp_path, documents, np.int32)
    assert (datasets.vocab_size, datasets.eod, datasets.documents) == (128256, 128001, 3)


def test_empty_documents_keep_their_place(tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines, build: Build) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": ""}, {"text": "a"}, {"text": []}, {"text": ["", "b", ""]}])
    datasets = build([file], demo_tokenizer, tmp_path / "ours", append_eod=True)
    reader = indexed_dataset.Reader(datasets.prefix)
    assert [reader.document(number).tolist() for number in range(4)] == [[], [64, 2047], [], [65, 2047]]
    assert reader.document_indices.tolist() == [0, 0, 1, 1, 2]


def test_the_number_of_workers_changes_nothing(
    tmp_path: Path, demo_tokenizer: Path, texts: list[str], write_lines: WriteLines, build: Build
) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in texts * 4])
    datasets = [build([file], demo_tokenizer, tmp_path / f"with{workers}", workers, append_eod=True) for workers in (1, 2, 5)]
    assert len({tuple(digests(one.prefix)) for one in datasets}) == 1


def test_several_inputs_in_the_order_given(tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines, build: Build) -> None:
    for name in ("b", "a", "z"):
        write_lines(tmp_path / f"{name}.jsonl", [{"text": name}])
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes().replace(b'"a"', b'"c"')))
    (tmp_path / "d.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "d"}'))
    datasets = build([tmp_path / "z.jsonl", str(tmp_path / "[a-d].*")], demo_tokenizer, tmp_path / "out")
    tokens = indexed_dataset.Reader(datasets.prefix).tokens
    assert "".join(chr(ord("a") + number - 64) for number in tokens) == "zabcd"


def test_remote_input_and_output(demo_tokenizer: Path, planned: Planned) -> None:
    with fsspec.open("memory://data/in.jsonl", "wb") as file:
        file.write(b'{"text": "a"}\n')
    run_plan = planned(["memory://data/*.jsonl"], demo_tokenizer, "memory://data/out", append_eod=True)
    assert sidecar.up_to_date(run_plan) is None
    datasets = runs.build(run_plan, 1)
    assert datasets[0].prefix == "memory://data/out_text_document"
    with fsspec.open("memory://data/out_text_document.bin", "rb") as file:
        assert np.frombuffer(file.read(), np.uint16).tolist() == [64, 2047]
    again = planned(["memory://data/in.jsonl"], demo_tokenizer, "memory://data/out", append_eod=True)
    assert sidecar.up_to_date(again) == datasets
    with fsspec.open("memory://data/in.jsonl", "wb") as file:
        file.write(b'{"text": "b"}\n')
    again = planned(["memory://data/in.jsonl"], demo_tokenizer, "memory://data/out", append_eod=True)
    assert sidecar.up_to_date(again) is None


def test_bad_line_names_file_and_line_and_leaves_nothing(tmp_path: Path, demo_tokenizer: Path, build: Build) -> None:
    good = b'{"text": "some text"}\n' * 200_000
    (tmp_path / "good.jsonl").write_bytes(good)
    (tmp_path / "bad.jsonl").write_bytes(good + b'{"text": oops}\n' + good + b"later\n")
    with pytest.raises(BadData, match=r"bad\.jsonl, line 200001, byte 4400000: not JSON"):
        build([tmp_path / "good.jsonl", tmp_path / "bad.jsonl"], demo_tokenizer, tmp_path / "out")
    assert leftovers(tmp_path) == []


def test_skipping_bad_lines(tmp_path: Path, demo_tokenizer: Path, capsys: pytest.CaptureFixture[str], build: Build) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + b"bad\n" * 7 + b'{"text": "b"}\n')
    datasets = build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", on_error="skip")
    assert indexed_dataset.Reader(datasets.prefix).tokens.tolist() == [64, 65]
    reported = capsys.readouterr().err
    assert "a.jsonl, line 2, byte 14: not JSON" in reported
    assert "a.jsonl, line 6, byte 30: not JSON" in reported
    assert "line 7" not in reported
    assert "7 lines left out" in reported
    assert json.loads(Path(f"{datasets.prefix}.json").read_bytes())["counts"]["bad_lines"] == 7


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("options", [{}, {"max_shard_bytes": 2000}], ids=["one part", "several parts"])
def test_the_bad_lines_of_all_chunks_are_counted(
    tmp_path: Path,
    demo_tokenizer: Path,
    planned: Callable[..., Plan],
    options: dict[str, Any],
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is left out in silence is lost. Every chunk of 2 kB has some, the last one has none."""
    monkeypatch.setattr("lt_preprocess.readers.chunks.CHUNK_BYTES", 2000)
    monkeypatch.setattr("lt_preprocess.readers.byte_ranges.LocalFile.chunk_bytes", 2000)
    lines = [json.dumps({"text": f"document {number}"}) if number % 9 else f"bad {number}" for number in range(1, 1000)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, *[json.dumps({"text": "at the end"})] * 200]) + "\n")
    bad = sum(line.startswith("bad") for line in lines)
    datasets = runs.build(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", on_error="skip", **options), workers)
    assert f"{bad} lines left out; 5 named above" in capsys.readouterr().err
    counts = [json.loads(Path(f"{one.prefix}.json").read_bytes())["counts"] for one in datasets]
    assert sum(count["bad_lines"] for count in counts) == bad == 111
    assert sum(count["documents"] for count in counts) == len(lines) - bad + 200


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf", b'{"text": ""}\n{"text": []}\n'])
def test_no_text_at_all(tmp_path: Path, demo_tokenizer: Path, content: bytes, build: Build) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(NoInput, match=r"a\.jsonl: (no documents|2 documents, all without text)"):
        build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", append_eod=True)
    assert leftovers(tmp_path) == []


def test_nothing_but_bad_lines(tmp_path: Path, demo_tokenizer: Path, build: Build) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"bad\n")
    with pytest.raises(NoInput, match=r"every line was left out, the first because: .*a.jsonl, line 1, byte 0: not JSON"):
        build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", on_error="skip")


def test_append_eod_without_such_a_token(tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines, build: Build) -> None:
    tokenizer = Path(shutil.copytree(demo_tokenizer, tmp_path / "tokenizer"))
    ids = json.loads((tokenizer / "vocab.json").read_text())
    del ids["<|endoftext|>"]
    (tokenizer / "vocab.json").write_text(json.dumps(ids))
    file = write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    with pytest.raises(BadConfig, match="no end-of-document token") as caught:
        build([file], tokenizer, tmp_path / "out", append_eod=True)
    assert caught.value.hint is not None
    assert build([file], tokenizer, tmp_path / "out").eod is None


def test_each_key_has_its_dataset(build: Build, planned: Planned, tmp_path: Path, demo_tokenizer: Path, texts: list[str]) -> None:
    lines = [{"title": text[:40], "text": text, "lead": [text[:9], "", text[9:20]]} for text in texts[:50]]
    lines[7]["lead"] = []
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    keys = ("title", "text", "lead")
    datasets = runs.build(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "all", json_keys=keys, append_eod=True), 2)
    assert [Path(one.prefix).name for one in datasets] == ["all_title_document", "all_text_document", "all_lead_document"]
    for key, one in zip(keys, datasets, strict=True):
        alone = build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "alone", json_keys=(key,), append_eod=True)
        assert digests(one.prefix) == digests(alone.prefix)
        assert json.loads(Path(f"{one.prefix}.json").read_bytes())["options"]["json_key"] == key
    assert sidecar.up_to_date(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "all", json_keys=keys, append_eod=True))


def test_a_line_that_is_bad_for_one_key_is_left_out_for_all(planned: Planned, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"a": "a", "b": "b"}\n{"a": "a"}\n{"a": "a", "b": "c"}\n')
    run_plan = planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", json_keys=("a", "b"), on_error="skip")
    assert [one.documents for one in runs.build(run_plan, 1)] == [2, 2]


@pytest.mark.parametrize(("keys", "message"), [(("a", "a"), "twice"), (("a/b",), "file name"), (("",), "file name")])
def test_keys_that_cannot_be(planned: Planned, tmp_path: Path, demo_tokenizer: Path, keys: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", json_keys=keys)


@pytest.mark.parametrize("limit", [1, 100, 5_000, 10**9])
@pytest.mark.parametrize("chunk_bytes", [500, 1 << 20])
def test_parts_hold_whole_documents_and_join_to_the_whole(
    build: Build,
    planned: Planned,
    tmp_path: Path,
    demo_tokenizer: Path,
    texts: list[str],
    limit: int,
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
    write_lines: WriteLines,
) -> None:
    monkeypatch.setattr("lt_preprocess.readers.byte_ranges.LocalFile.chunk_bytes", chunk_bytes)
    file = write_lines(tmp_path / "a.jsonl", [{"text": text, "first": text[:5]} for text in texts[:12]])
    whole = indexed_dataset.Reader(build([file], demo_tokenizer, tmp_path / "whole", append_eod=True).prefix)
    keys = ("text", "first")
    run_plan = planned([file], demo_tokenizer, tmp_path / "out", append_eod=True, max_shard_bytes=limit, json_keys=keys)
    datasets = runs.build(run_plan, 2)
    assert [Path(one.prefix).name for one in datasets] == [
        f"out-part{part:05d}_{key}_document" for part in range(len(datasets) // 2) for key in keys
    ]
    readers = [indexed_dataset.Reader(one.prefix) for one in datasets]
    documents = [reader.document(number).tolist() for reader in readers[::2] for number in range(reader.documents)]
    assert documents == [whole.document(number).tolist() for number in range(whole.documents)]
    assert [text.documents for text in readers[::2]] == [first.documents for first in readers[1::2]]
    for reader in readers:
        assert reader.tokens.nbytes <= limit or reader.documents == 1
    sizes = [reader.tokens.nbytes for reader in readers[::2]]
    for here, following in zip(readers[::2], readers[2::2], strict=False):
        assert here.tokens.nbytes + 2 * len(following.document(0)) > limit, "a part is as large as it may be"
    assert sum(sizes) == whole.tokens.nbytes
    assert sidecar.up_to_date(run_plan) == datasets
    Path(f"{datasets[-1].prefix}.idx").unlink()
    assert sidecar.up_to_date(run_plan) is None
    assert not [name for name in leftovers(tmp_path) if name.startswith(".")]


def test_quarantine_keeps_the_lines(
    planned: Planned, tmp_path: Path, demo_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [b'{"text": null}', b'{"text": "\xff"}', "{héllo}".encode()]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + b"\n".join(bad) + b'\n{"text": "b"}\n')
    run_plan = planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", on_error="quarantine")
    [datasets] = runs.build(run_plan, 1)
    assert datasets.documents == 2
    quarantined = [json.loads(line) for line in (tmp_path / "out_quarantine.jsonl").read_bytes().splitlines()]
    assert [line["line"] for line in quarantined] == [2, 3, 4]
    assert [line["offset"] for line in quarantined] == [14, 29, 43]
    assert [base64.b64decode(line["raw_base64"]) if "raw_base64" in line else line["raw"].encode() for line in quarantined] == bad
    assert "3 lines left out" in capsys.readouterr().err
    assert json.loads(Path(f"{datasets.prefix}.json").read_bytes())["counts"]["bad_lines"] == 3
    assert sidecar.up_to_date(run_plan) == [datasets]


def test_rejected_documents_are_bad_lines(planned: Planned, tmp_path: Path, demo_tokenizer: Path) -> None:
    lines = [
        b'{"a": "fine", "b": "fine"}',
        b'{"a": "an <|endoftext|> here", "b": ["x", "y"]}',
        b"",
        b"bad",
        b'{"a": ["x", "", "y"], "b": ["fine", "no <|endoftext|>"]}',
        b'{"a": "last", "b": "last"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))

    def token_lists(prefix: str, **options: Any) -> list[list[list[int]]]:
        run_plan = planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / prefix, json_keys=("a", "b"), **options)
        readers = [indexed_dataset.Reader(one.prefix) for one in runs.build(run_plan, 1)]
        return [[reader.document(number).tolist() for number in range(reader.documents)] for reader in readers]

    kept = token_lists("kept", special_tokens="reject", on_error="quarantine")
    every = token_lists("every", on_error="skip")
    assert kept == [[column[0], column[3]] for column in every]
    quarantined = [json.loads(line) for line in (tmp_path / "kept_quarantine.jsonl").read_bytes().splitlines()]
    assert [(line["line"], line["raw"].encode()) for line in quarantined] == [(2, lines[1]), (4, lines[3]), (5, lines[4])]
    assert [line["reason"] for line in quarantined[::2]] == [
        "special token <|endoftext|> at byte 3 of the text",
        "special token <|endoftext|> at byte 3 of the text",
    ]
    with pytest.raises(BadData, match="line 2, byte 27: special token"):
        token_lists("failed", special_tokens="reject")


def test_rejected_rows_and_plain_texts(planned: Planned, tmp_path: Path, demo_tokenizer: Path) -> None:
    texts = ["fine", None, "an <|endoftext|>", "fine"]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    (tmp_path / "b.txt").write_text("no <|endoftext|>")
    files = [tmp_path / "a.parquet", tmp_path / "b.txt"]
    run_plan = planned(files, demo_tokenizer, tmp_path / "out", special_tokens="reject", on_error="quarantine")
    assert runs.build(run_plan, 1)[0].documents == 2
    quarantined = [json.loads(line) for line in (tmp_path / "out_quarantine.jsonl").read_bytes().splitlines()]
    assert [(Path(line["source"]).name, line["line"], line["raw"]) for line in quarantined] == [
        ("a.parquet", 2, '{"text": null}'),
        ("a.parquet", 3, '{"text": ["an <|endoftext|>"]}'),
        ("b.txt", 1, "no <|endoftext|>"),
    ]


def test_the_quarantine_of_an_earlier_run_goes_with_its_dataset(build: Build, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\nbad\n')
    build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", on_error="quarantine")
    assert (tmp_path / "out_quarantine.jsonl").exists()
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n')
    build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", on_error="quarantine")
    assert not (tmp_path / "out_quarantine.jsonl").exists()


def test_remote_parts_are_kept_when_a_run_fails(
    planned: Planned, tmp_path: Path, demo_tokenizer: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends by an error in its second half; the next one begins with the first part that is not finished."""
    monkeypatch.setattr("lt_preprocess.readers.byte_ranges.LocalFile.chunk_bytes", 2000)
    good = "".join(json.dumps({"text": text}) + "\n" for text in texts[:60])
    (tmp_path / "a.jsonl").write_text(good + "bad\n")
    files: list[Any] = [[tmp_path / "a.jsonl"], demo_tokenizer, "memory://resumed/out"]
    with pytest.raises(BadData):
        runs.build(planned(*files, max_shard_bytes=5000), 1)
    first = "memory://resumed/out-part00000_text_document.bin"
    written = fsspec.filesystem("memory").modified(first)
    datasets = runs.build(planned(*files, max_shard_bytes=5000, on_error="skip"), 1)
    assert len(datasets) > 3
    assert fsspec.filesystem("memory").modified(first) == written
    tokens = b"".join(fsspec.filesystem("memory").cat(f"{one.prefix}.bin") for one in datasets)
    [whole] = runs.build(planned([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "whole", on_error="skip"), 1)
    assert tokens == Path(f"{whole.prefix}.bin").read_bytes()
    assert not [name for name in fsspec.filesystem("memory").ls("memory://resumed", detail=False) if "journal" in name]


def test_shards_one_after_another_are_the_whole(
    build: Build, planned: Planned, tmp_path: Path, demo_tokenizer: Path, texts: list[str], write_lines: WriteLines
) -> None:
    files = [
        write_lines(tmp_path / f"{name}.jsonl", [{"text": text} for text in texts[start:][:40]])
        for name, start in (("a", 0), ("b", 40), ("c", 80))
    ]
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(files[0].read_bytes()))
    files.append(tmp_path / "d.jsonl.gz")
    whole = indexed_dataset.Reader(build(files, demo_tokenizer, tmp_path / "whole", append_eod=True).prefix)
    datasets = [
        runs.build(planned(files, demo_tokenizer, tmp_path / "out", append_eod=True, shard=Slice(index, 5)), 1)[0]
        for index in range(5)
    ]
    assert [Path(one.prefix).name for one in datasets] == [f"out-{index:05d}-of-00005_text_document" for index in range(5)]
    shards = [indexed_dataset.Reader(one.prefix) for one in datasets]
    assert np.array_equal(np.concatenate([shard.tokens for shard in shards]), whole.tokens)
    assert sum(shard.documents for shard in shards) == whole.documents
    named = [json.loads(Path(f"{one.prefix}.json").read_bytes())["sources"] for one in datasets]
    assert sorted({Path(source["path"]).name for sources in named for source in sources}) == [file.name for file in files]
    assert all(len(sources) < 4 for sources in named)


def test_an_empty_shard_is_an_empty_dataset(
    planned: Planned, tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines
) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    run_plans = [planned([file], demo_tokenizer, tmp_path / "out", shard=Slice(index, 3)) for index in range(3)]
    datasets = [runs.build(one, 1)[0] for one in run_plans]
    assert sorted(one.documents or 0 for one in datasets) == [0, 0, 1]
    assert [sidecar.up_to_date(one) for one in run_plans] == [[one] for one in datasets]
