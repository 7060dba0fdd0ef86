"""Whole runs: files equal to megatron-core's, no repeated work, and nothing that looks finished after a kill."""

import gzip
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tiktoken
import torch
import zstandard
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

from lt_preprocess import dataset
from lt_shared import indexed_dataset, manifest
from lt_shared.console import BadConfig, BadData, NoInput

WriteLines = Callable[[Path, list[Any]], Path]
Run = Callable[..., subprocess.CompletedProcess[str]]


def build(files: list[str | Path], tokenizer: Path, prefix: str | Path, workers: int = 2, **options: Any) -> manifest.Dataset:
    plan = dataset.plan([str(file) for file in files], tokenizer, str(prefix), dataset.Options(**options))
    return dataset.build(plan, workers)


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
    tmp_path: Path, corpus: Path, demo_tokenizer: Path, demo_reference: tiktoken.Encoding, texts: list[str], append_eod: bool
) -> None:
    made = build([corpus], demo_tokenizer, tmp_path / "ours", append_eod=append_eod)
    ending = [2047] if append_eod else []
    documents = [[[*ids, *ending]] for ids in demo_reference.encode_ordinary_batch(texts)]
    assert digests(made.prefix) == megatron_digests(tmp_path, documents, np.uint16)
    assert (made.documents, made.tokens, made.dtype) == (len(texts), sum(len(ids) for [ids] in documents), "uint16")


def test_large_vocabularies_are_written_as_int32(tmp_path: Path, llama3_model: Path, write_lines: WriteLines) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": "Hello world"}, {"text": ""}, {"text": ["a", "", "b c"]}])
    made = build([file], llama3_model, tmp_path / "ours", append_eod=True)
    documents = [[[9906, 1917, 128001]], [], [[64], [65, 272, 128001]]]
    assert digests(made.prefix) == megatron_digests(tmp_path, documents, np.int32)
    assert (made.vocab_size, made.eod, made.documents) == (128256, 128001, 3)


def test_empty_documents_keep_their_place(tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": ""}, {"text": "a"}, {"text": []}, {"text": ["", "b", ""]}])
    made = build([file], demo_tokenizer, tmp_path / "ours", append_eod=True)
    reader = indexed_dataset.Reader(made.prefix)
    assert [reader.document(number).tolist() for number in range(4)] == [[], [64, 2047], [], [65, 2047]]
    assert reader.document_indices.tolist() == [0, 0, 1, 1, 2]


def test_the_number_of_workers_changes_nothing(
    tmp_path: Path, demo_tokenizer: Path, texts: list[str], write_lines: WriteLines
) -> None:
    file = write_lines(tmp_path / "a.jsonl", [{"text": text} for text in texts * 4])
    made = [build([file], demo_tokenizer, tmp_path / f"with{workers}", workers, append_eod=True) for workers in (1, 2, 5)]
    assert len({tuple(digests(one.prefix)) for one in made}) == 1


def test_several_inputs_in_the_order_given(tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines) -> None:
    for name in ("b", "a", "z"):
        write_lines(tmp_path / f"{name}.jsonl", [{"text": name}])
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes().replace(b'"a"', b'"c"')))
    (tmp_path / "d.jsonl.zst").write_bytes(zstandard.compress(b'{"text": "d"}'))
    made = build([tmp_path / "z.jsonl", str(tmp_path / "[a-d].*")], demo_tokenizer, tmp_path / "out")
    tokens = indexed_dataset.Reader(made.prefix).tokens
    assert "".join(chr(ord("a") + number - 64) for number in tokens) == "zabcd"


def test_remote_input_and_output(demo_tokenizer: Path) -> None:
    with fsspec.open("memory://data/in.jsonl", "wb") as file:
        file.write(b'{"text": "a"}\n')
    options = dataset.Options(append_eod=True)
    plan = dataset.plan(["memory://data/*.jsonl"], demo_tokenizer, "memory://data/out", options)
    assert dataset.finished(plan) is None
    made = dataset.build(plan, 1)
    assert made.prefix == "memory://data/out_text_document"
    with fsspec.open("memory://data/out_text_document.bin", "rb") as file:
        assert np.frombuffer(file.read(), np.uint16).tolist() == [64, 2047]
    again = ["memory://data/in.jsonl"]
    assert dataset.finished(dataset.plan(again, demo_tokenizer, "memory://data/out", options)) == made
    with fsspec.open("memory://data/in.jsonl", "wb") as file:
        file.write(b'{"text": "b"}\n')
    assert dataset.finished(dataset.plan(again, demo_tokenizer, "memory://data/out", options)) is None


def test_bad_line_names_file_and_line_and_leaves_nothing(tmp_path: Path, demo_tokenizer: Path) -> None:
    good = b'{"text": "some text"}\n' * 200_000
    (tmp_path / "good.jsonl").write_bytes(good)
    (tmp_path / "bad.jsonl").write_bytes(good + b'{"text": oops}\n' + good + b"later\n")
    with pytest.raises(BadData, match=r"bad\.jsonl, line 200001, byte 4400000: not JSON"):
        build([tmp_path / "good.jsonl", tmp_path / "bad.jsonl"], demo_tokenizer, tmp_path / "out")
    assert leftovers(tmp_path) == []


def test_skipping_bad_lines(tmp_path: Path, demo_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n' + b"bad\n" * 7 + b'{"text": "b"}\n')
    made = build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", on_error="skip")
    assert indexed_dataset.Reader(made.prefix).tokens.tolist() == [64, 65]
    reported = capsys.readouterr().err
    assert "a.jsonl, line 2, byte 14: not JSON" in reported
    assert "a.jsonl, line 6, byte 30: not JSON" in reported
    assert "line 7" not in reported
    assert "7 lines skipped" in reported
    assert json.loads(Path(f"{made.prefix}.json").read_bytes())["skipped_lines"] == 7


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf", b'{"text": ""}\n{"text": []}\n'])
def test_no_text_at_all(tmp_path: Path, demo_tokenizer: Path, content: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(NoInput, match=r"a\.jsonl: (no documents|2 documents, all without text)"):
        build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", append_eod=True)
    assert leftovers(tmp_path) == []


def test_nothing_but_bad_lines(tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"bad\n")
    with pytest.raises(NoInput, match="no documents"):
        build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", on_error="skip")


def test_append_eod_without_such_a_token(tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines) -> None:
    tokenizer = Path(shutil.copytree(demo_tokenizer, tmp_path / "tokenizer"))
    ids = json.loads((tokenizer / "vocab.json").read_text())
    del ids["<|endoftext|>"]
    (tokenizer / "vocab.json").write_text(json.dumps(ids))
    file = write_lines(tmp_path / "a.jsonl", [{"text": "a"}])
    with pytest.raises(BadConfig, match="no end-of-document token") as caught:
        build([file], tokenizer, tmp_path / "out", append_eod=True)
    assert caught.value.hint is not None
    assert build([file], tokenizer, tmp_path / "out").eod is None


@pytest.fixture
def done(tmp_path: Path, demo_tokenizer: Path, write_lines: WriteLines) -> Callable[..., manifest.Dataset | None]:
    """A finished dataset; returns `finished` for the same command with some changes."""
    write_lines(tmp_path / "a.jsonl", [{"text": "a", "other": "b"}])
    shutil.copytree(demo_tokenizer, tmp_path / "tokenizer")

    def finished(**options: Any) -> manifest.Dataset | None:
        changed = dataset.Options(**options)
        return dataset.finished(dataset.plan([str(tmp_path / "a.jsonl")], tmp_path / "tokenizer", str(tmp_path / "out"), changed))

    assert finished() is None
    made = build([tmp_path / "a.jsonl"], tmp_path / "tokenizer", tmp_path / "out")
    assert finished() == made
    return finished


def test_changed_options_are_not_up_to_date(done: Callable[..., Any]) -> None:
    assert done(append_eod=True) is None
    assert done(on_error="skip") is None
    assert done(json_key="other") is None


def test_a_changed_input_is_not_up_to_date(done: Callable[..., Any], tmp_path: Path) -> None:
    os.utime(tmp_path / "a.jsonl", ns=(1, 1))
    assert done() is None


def test_another_tokenizer_is_not_up_to_date(done: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "tokenizer/merges.txt").write_text("#version: 0.2\n")
    assert done() is None


def test_a_moved_tokenizer_is_up_to_date_and_named_where_it_is(
    done: Callable[..., Any], tmp_path: Path, demo_tokenizer: Path
) -> None:
    plan = dataset.plan([str(tmp_path / "a.jsonl")], demo_tokenizer, str(tmp_path / "out"), dataset.Options())
    found = dataset.finished(plan)
    assert found is not None
    assert found.tokenizer is not None
    assert found.tokenizer.path == str(demo_tokenizer)


@pytest.mark.parametrize("damage", ["no idx", "no bin", "short bin", "no sidecar", "bad sidecar", "empty sidecar"])
def test_a_damaged_dataset_is_not_up_to_date(done: Callable[..., Any], tmp_path: Path, damage: str) -> None:
    prefix = tmp_path / "out_text_document"
    damages: dict[str, Callable[[], object]] = {
        "no idx": lambda: Path(f"{prefix}.idx").unlink(),
        "no bin": lambda: Path(f"{prefix}.bin").unlink(),
        "short bin": lambda: os.truncate(f"{prefix}.bin", 1),
        "no sidecar": lambda: Path(f"{prefix}.json").unlink(),
        "bad sidecar": lambda: Path(f"{prefix}.json").write_text("["),
        "empty sidecar": lambda: Path(f"{prefix}.json").write_text("{}"),
    }
    damages[damage]()
    assert done() is None


@pytest.fixture(scope="session")
def large_corpus(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """28 MB of text: about a second of work."""
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    path.write_text(lines * 16)
    return path


def start(arguments: list[Any], **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lt_preprocess", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def wait_for_partial(directory: Path) -> None:
    """Wait until the start, with imports and perhaps compilation, is over and the output is being written."""
    deadline = time.monotonic() + 60
    while not (directory / ".out_text_document.bin.partial").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_killed_at_any_moment(tmp_path: Path, demo_tokenizer: Path, large_corpus: Path) -> None:
    """After SIGKILL there is no index, or the pair is whole, also where an older dataset of the same name was."""
    arguments = [large_corpus, "--tokenizer", demo_tokenizer, "--append-eod", "-o", tmp_path / "out", "--force"]
    process = start(arguments)
    wait_for_partial(tmp_path)
    begun = time.monotonic()
    process.communicate()
    work_seconds = time.monotonic() - begun
    prefix = str(tmp_path / "out_text_document")
    complete = digests(prefix)
    killed = 0
    for eighths in range(9):
        process = start(arguments)
        wait_for_partial(tmp_path)
        time.sleep(eighths / 8 * work_seconds)
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        if Path(f"{prefix}.idx").exists():
            assert digests(prefix) == complete
            indexed_dataset.Reader(prefix)
    assert killed > 2
    subprocess.run([sys.executable, "-m", "lt_preprocess", *map(str, arguments)], check=True, capture_output=True)
    assert digests(prefix) == complete
    assert sorted(leftovers(tmp_path)) == ["out_text_document.bin", "out_text_document.idx", "out_text_document.json"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("source", ["busy", "waiting"])
def test_signals_end_it_promptly_and_leave_nothing(
    tmp_path: Path, demo_tokenizer: Path, large_corpus: Path, source: str, number: signal.Signals, code: int
) -> None:
    files = [large_corpus] * 20 if source == "busy" else ["-"]
    process = start([*files, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out"], stdin=subprocess.PIPE)
    wait_for_partial(tmp_path)
    time.sleep(1.0)
    sent = time.monotonic()
    process.send_signal(number)
    assert process.wait(timeout=20) == code
    assert time.monotonic() - sent < 5
    assert process.stdin is not None
    process.stdin.close()
    assert process.stderr is not None
    lines = process.stderr.read().decode().strip().splitlines()
    assert sum("error:" in line for line in lines) == 1
    assert leftovers(tmp_path) == []


def test_a_full_disk(tmp_path: Path, run: Run, demo_tokenizer: Path, large_corpus: Path) -> None:
    """A limit on the size of files stands in for the disk: the write fails half-way all the same."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    result = run(large_corpus, "--tokenizer", demo_tokenizer, "-o", tmp_path / "out", preexec_fn=limit)
    assert result.returncode == 74
    assert result.stdout == ""
    assert sum(line.startswith("lt-preprocess: error: ") for line in result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr
    assert leftovers(tmp_path) == []
