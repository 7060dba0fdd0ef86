"""`cat --where` and `grep`: every document of a hand-made corpus says in its own text which file, line and byte it is from."""

import bz2
import gzip
import json
import lzma
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nursery
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from lt_preprocess.datasets import decoding, source_places
from lt_shared.contracts import manifest
from lt_shared.contracts.manifest import Dataset
from lt_shared.data.document_origins import packing

Run = Callable[..., subprocess.CompletedProcess[str]]

LINES = 300
MANY_LINES = 1000
# The program, which reads what is in files of many MB as chunks of 1 MiB.
SMALL_CHUNKS = """
from lt_preprocess.readers import byte_ranges, chunks
chunks.CHUNK_BYTES = byte_ranges.LocalFile.chunk_bytes = 20_000
from lt_preprocess.cli import main
main()
"""
SUFFIXES = {
    ".jsonl": lambda content: content,
    ".jsonl.gz": gzip.compress,
    ".jsonl.zst": zstandard.ZstdCompressor().compress,
    ".jsonl.xz": lzma.compress,
    ".jsonl.bz2": bz2.compress,
}


def lines_of(name: str, seed: int, count: int = LINES) -> list[bytes]:
    """Lines with documents that say where they are, between bad and blank ones, empty documents and lists."""
    rng = random.Random(seed)
    offset, made = 3 if seed % 2 else 0, []
    for number in range(1, count + 1):
        said = f"[{name}:{number}:{offset}]"
        kind = rng.choices(["text", "list", "bad", "blank", "key", "empty", "nested"], [60, 5, 5, 5, 2, 2, 5])[0]
        line = {
            "text": json.dumps({"text": f"{said} " + "lorem \u00e9\n" * rng.randrange(40)}),
            "list": json.dumps({"text": [said, "second part"]}),
            "bad": '{"text": "cut off',
            "blank": rng.choice(["", "  ", "\r", " \t"]),
            "key": '{"other": "no text"}',
            "empty": '{"text": ""}',
            "nested": json.dumps({"meta": {"text": ["x"] * 3, "n": 1e5}, "text": said}, ensure_ascii=False),
        }[kind].encode()
        made.append(line + (b"\r\n" if rng.random() < 0.1 else b"\n"))
        offset += len(made[-1])
    return made


def write(directory: Path, name: str, seed: int, suffix: str, count: int = LINES) -> Path:
    path = directory / f"{name}{suffix}"
    content = b"".join(lines_of(name, seed, count))
    path.write_bytes(SUFFIXES[suffix]((b"\xef\xbb\xbf" if seed % 2 else b"") + content))
    return path


def check(prefix: Path, numbered: bool = True) -> list[str]:
    """Every document is where its text says. Returns what the documents say."""
    texts = list(decoding.texts(manifest.describe(str(prefix))))
    places = list(source_places.records(str(prefix), None))
    assert len(texts) == len(places) > 0
    said = []
    for number, (text, place) in enumerate(zip(texts, places, strict=True)):
        assert place["document"] == number and "problem" not in place
        first = text[0] if isinstance(text, list) else text
        if first.startswith("["):
            name, line, offset = first[1 : first.index("]")].split(":")
            assert Path(place["path"]).name.split(".")[0] == name
            assert place["offset"] == int(offset)
            assert place["line"] == (int(line) if numbered else None)
            said.append(f"{name}:{line}")
        else:
            said.append("")
    assert len(set(said)) > 10
    return said


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lt_preprocess.readers.chunks.CHUNK_BYTES", 20_000)
    monkeypatch.setattr("lt_preprocess.readers.byte_ranges.LocalFile.chunk_bytes", 20_000)


@pytest.fixture(scope="module")
def run() -> Run:
    def run_program(*arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [nursery.light_python(), "-c", SMALL_CHUNKS, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, timeout=900, check=False, text=True, **options)

    return run_program


@pytest.fixture
def tokenize(run: Run, demo_tokenizer: Path):
    def tokenized(*arguments: str | Path) -> None:
        done = run(*map(str, arguments), "--tokenizer", str(demo_tokenizer), "--append-eod", "--on-error", "skip")
        assert done.returncode == 0, done.stderr

    return tokenized


def test_every_kind_of_file_of_lines(run: Run, tokenize, tmp_path: Path) -> None:
    paths = [write(tmp_path, f"file{seed}", seed, suffix) for seed, suffix in enumerate(SUFFIXES)]
    tokenize(*paths, "-o", tmp_path / "all")
    said = check(tmp_path / "all_text_document")
    assert {word.split(":")[0] for word in said if word} == {f"file{seed}" for seed in range(len(SUFFIXES))}


def test_several_chunks_and_parts(run: Run, tokenize, tmp_path: Path) -> None:
    """A part begins in the middle of a chunk; some files belong to two parts."""
    paths = [write(tmp_path, f"file{seed}", seed, suffix, MANY_LINES) for seed, suffix in ((0, ".jsonl"), (1, ".jsonl.zst"))]
    tokenize(*paths, "-o", tmp_path / "parts", "--max-shard-size", "120k")
    parts = sorted(tmp_path.glob("parts-part*.idx"))
    assert len(parts) > 2
    said = [word for part in parts for word in check(part.with_suffix(""))]
    tokenize(*paths, "-o", tmp_path / "whole")
    assert said == check(tmp_path / "whole_text_document")
    assert run("merge", tmp_path / "parts-part*", "-o", tmp_path / "merged").returncode == 0
    assert said == check(tmp_path / "merged")


def test_shards(run: Run, tokenize, tmp_path: Path) -> None:
    """Lines of a shard that begins within a file have no number, and their bytes are those of the file."""
    path = write(tmp_path, "file0", 0, ".jsonl", MANY_LINES)
    said = []
    for shard in range(3):
        tokenize(path, "-o", tmp_path / "shard", "--shard", f"{shard}/3", "--max-shard-size", "40k")
        parts = sorted(tmp_path.glob(f"shard-*{shard}-of-*3-part*.idx"))
        assert len(parts) > 1
        said += [word for part in parts for word in check(part.with_suffix(""), numbered=shard == 0)]
    tokenize(path, "-o", tmp_path / "whole")
    assert said == check(tmp_path / "whole_text_document")
    assert run("merge", tmp_path / "shard-*-of-*", "-o", tmp_path / "merged").returncode == 0
    # One call reads lines of all shards, which number them from different bytes.
    merged, whole = (list(source_places.records(str(tmp_path / name), None)) for name in ("merged", "whole_text_document"))
    assert [(place["offset"], place.get("problem")) for place in merged] == [(place["offset"], None) for place in whole]


def test_merged_shuffled_and_split(run: Run, tokenize, tmp_path: Path) -> None:
    for seed, suffix in ((0, ".jsonl"), (1, ".jsonl.gz")):
        tokenize(write(tmp_path, f"file{seed}", seed, suffix), "-o", tmp_path / f"part{seed}")
    for command in (
        ["merge", "part1_text_document", "part0_text_document", "-o", "merged"],
        ["shuffle", "merged", "-o", "shuffled", "--seed", "3"],
        ["split", "shuffled", "-o", "split", "--ratios", "3,1"],
        ["shuffle", "split_train", "-o", "again"],
        ["merge", "split_valid", "again", "-o", "last"],
    ):
        done = run(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    of_all = check(tmp_path / "merged")
    for name in ("shuffled", "last"):
        assert sorted(check(tmp_path / name)) == sorted(of_all) != check(tmp_path / name)


def test_rows_of_parquet_and_plain_texts(run: Run, tokenize, tmp_path: Path) -> None:
    texts = [None if row % 7 == 3 else f"row {row} of the table" for row in range(1, 50)]
    pq.write_table(pa.table({"text": texts, "number": list(range(1, 50))}), tmp_path / "rows.parquet", row_group_size=10)
    (tmp_path / "one.txt").write_text("A text\nof two lines.\n")
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b"Another one."))
    tokenize(tmp_path / "rows.parquet", tmp_path / "one.txt", tmp_path / "two.txt.gz", "-o", tmp_path / "all")
    records = [json.loads(line) for line in run("cat", "--where", tmp_path / "all_text_document").stdout.splitlines()]
    rows = [record["row"] for record in records[:-2]]
    assert rows == [row for row in range(1, 50) if row % 7 != 3]
    assert [(Path(record["path"]).name, record["line"], record["offset"]) for record in records[-2:]] == [
        ("one.txt", 1, 0),
        ("two.txt.gz", 1, 0),
    ]


def test_a_source_that_was_changed_or_is_gone(run: Run, tokenize, tmp_path: Path) -> None:
    """Lines follow from the sidecar alone; bytes need the file."""
    paths = [write(tmp_path, f"file{seed}", seed, ".jsonl", 10) for seed in (0, 2)]
    tokenize(*paths, "-o", tmp_path / "all")
    before = [json.loads(line) for line in run("cat", "--where", tmp_path / "all_text_document").stdout.splitlines()]
    paths[0].write_bytes(paths[0].read_bytes() + b"\n")
    paths[1].unlink()
    after = [json.loads(line) for line in run("cat", "--where", tmp_path / "all_text_document").stdout.splitlines()]
    assert [(record["path"], record["line"]) for record in after] == [(record["path"], record["line"]) for record in before]
    assert all(record["offset"] is None for record in after)
    assert {record["problem"] for record in after} == {
        f"{paths[0]}: was changed since it was tokenized",
        f"{paths[1]}: no such file",
    }


def test_rejected_special_tokens_are_left_out(run: Run, demo_tokenizer: Path, tmp_path: Path) -> None:
    texts = [f"line {line}" + ("<|endoftext|>" if line % 3 == 0 else "") for line in range(1, 20)]
    path = tmp_path / "some.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    options = ["--special-tokens", "reject", "--on-error", "skip", "--tokenizer", str(demo_tokenizer)]
    assert run(str(path), *options, "-o", tmp_path / "some").returncode == 0
    records = [json.loads(line) for line in run("cat", "--where", tmp_path / "some_text_document").stdout.splitlines()]
    assert [record["line"] for record in records] == [line for line in range(1, 20) if line % 3]


def test_standard_input(run: Run, demo_tokenizer: Path, tmp_path: Path) -> None:
    """It cannot be read again; the line is known."""
    run("-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "piped", input='{"text": "one"}\n\n{"text": "two"}\n')
    [_, second] = [json.loads(line) for line in run("cat", "--where", tmp_path / "piped_text_document").stdout.splitlines()]
    assert (second["path"], second["line"], second["offset"]) == ("standard input", 3, None)


def test_grep(run: Run, tokenize, tmp_path: Path) -> None:
    path = write(tmp_path, "file0", 0, ".jsonl")
    tokenize(path, "-o", tmp_path / "all")
    found = run("grep", r"\[file0:2\d:", tmp_path / "all_text_document")
    assert found.returncode == 0
    for record in map(json.loads, found.stdout.splitlines()):
        assert f"[file0:{record['line']}:{record['offset']}]" in record["text"]
    nothing = run("grep", "-F", "[file0:2\\d", tmp_path / "all_text_document")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert run("grep", "(", tmp_path / "all_text_document").returncode == 2


def test_a_dataset_that_does_not_know(run: Run, tokenize, tmp_path: Path) -> None:
    tokenize(write(tmp_path, "file0", 0, ".jsonl"), "-o", tmp_path / "all")
    sidecar = tmp_path / "all_text_document.json"
    record = json.loads(sidecar.read_text())
    for origins, message in ((None, "nothing says where"), ({"v": 1, "kind": "lines"}, "malformed origins")):
        sidecar.write_text(json.dumps(record | {"origins": origins}))
        done = run("cat", "--where", tmp_path / "all_text_document")
        assert done.returncode != 0 and message in done.stderr


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_lines_after_a_remembered_byte(
    suffix: str, build: Callable[..., Dataset], demo_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in files of many times 16 MiB, and over several chunks; also when the source is read for one document alone."""
    monkeypatch.setattr("lt_preprocess.readers.chunks.CHUNK_BYTES", 2000)
    monkeypatch.setattr("lt_preprocess.readers.byte_ranges.LocalFile.chunk_bytes", 2000)
    monkeypatch.setattr("lt_preprocess.pipeline.origin_rows.BYTES_BETWEEN_MARKS", 5000)
    path = write(tmp_path, "file0", 0, suffix)
    made = build([path], demo_tokenizer, tmp_path / "all", on_error="skip")
    [texts] = [list(decoding.texts(made))]
    record = json.loads(Path(f"{made.prefix}.json").read_text())["origins"]
    assert len(packing.unpack(record["marks"][0])) > 3
    together = list(source_places.records(made.prefix, None))
    for number, (text, place) in enumerate(zip(texts, together, strict=True)):
        said = text[0] if isinstance(text, list) else text
        if said.startswith("["):
            assert said.startswith(f"[file0:{place['line']}:{place['offset']}]")
        if number % 20 == 0:
            assert list(source_places.records(made.prefix, str(number))) == [place]
