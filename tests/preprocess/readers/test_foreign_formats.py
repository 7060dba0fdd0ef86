"""A file that holds no documents is named by what it is, whatever its name says, and never left out line by line."""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from lt_preprocess.readers import inputs
from lt_preprocess.readers.chunks import BEGINNING
from lt_preprocess.readers.slices import WHOLE
from lt_shared.console import BadData

Run = Callable[..., subprocess.CompletedProcess[str]]

# Of more bytes than are looked at before lines are read.
LONG = json.dumps({"text": "one " * 20_000}).encode() + b"\n"
LINE = b'{"text": "one"}\n'
TABLE = pa.table({"text": ["one", "two"]})
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234567890\n"


def written(write: Callable[[io.BytesIO], Any]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def zipped() -> bytes:
    def write(file: io.BytesIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a.jsonl", LINE)

    return written(write)


def sqlite() -> bytes:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("create table t (text)")
        return connection.serialize()


def encrypted_parquet() -> bytes:
    return b"PARE" + b"\x15\x04" * 20 + b"PARE"


CONTENTS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "LFS": ("a Git LFS pointer", lambda: LFS),
    "annex": ("a git-annex pointer", lambda: b"/annex/objects/SHA256E-s12--ab.jsonl\n"),
    "HTML": ("an HTML page", lambda: b"\n<!DOCTYPE html>\n<html><body>404</body></html>\n"),
    "bare HTML": ("an HTML page", lambda: b"<HTML>\n<head><title>Sign in</title></head></HTML>\n"),
    "XML": ("XML", lambda: b'<?xml version="1.0"?>\n<Error><Code>AccessDenied</Code></Error>\n'),
    "zip": ("a zip archive", zipped),
    "lzma": ("compressed by lzma", lambda: lzma.compress(LINE, format=lzma.FORMAT_ALONE)),
    "twice": ("is compressed twice", lambda: gzip.compress(gzip.compress(LINE))),
    "three kinds": ("is compressed twice", lambda: bz2.compress(lzma.compress(LINE))),
    "Parquet in gzip": ("Parquet in a compressed file", lambda: gzip.compress(written(lambda file: pq.write_table(TABLE, file)))),
    "encrypted": ("encrypted Parquet", encrypted_parquet),
    "Feather": ("a Feather file", lambda: written(lambda file: pa.feather.write_feather(TABLE, file, version=1))),
    "ORC": ("an ORC file", lambda: written(lambda file: pa.orc.write_table(TABLE, file))),
    "NumPy": ("a NumPy array", lambda: written(lambda file: np.save(file, np.arange(3)))),
    "SQLite": ("an SQLite database", sqlite),
    "pickle": ("a pickle", lambda: pickle.dumps({"text": "one"})),
    "UTF-16": ("UTF-16 text", lambda: LINE.decode().encode("utf-16")),
    "UTF-16 without mark": ("UTF-16 text", lambda: LINE.decode().encode("utf-16-le")),
    "UTF-16, big": ("UTF-16 text", lambda: LINE.decode().encode("utf-16-be")),
    "UTF-32": ("UTF-32 text", lambda: LINE.decode().encode("utf-32")),
    "array": ("a JSON array over all documents", lambda: json.dumps([{"text": "one"}]).encode()),
    "array on lines": ("a JSON array over all documents", lambda: json.dumps([{"text": "one"}], indent=1).encode()),
    "indented": ("JSON that spreads an object over several lines", lambda: json.dumps({"text": "one"}, indent=2).encode()),
    "joined objects": ("JSON objects without line breaks", lambda: b'{"text": "one"}{"text": "two"}' * 99),
    "joined on each line": ("JSON objects without line breaks", lambda: b'{"text": "a{b"} {"text": "two"}\n' * 9),
    "carriage returns": ("lines that end in a carriage return alone", lambda: LINE.replace(b"\n", b"\r") * 9),
    "JSON sequence": ("a JSON sequence", lambda: b"\x1e" + LINE),
    "PNG": ("a picture", lambda: b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"),
    "JPEG": ("a picture", lambda: b"\xff\xd8\xff\xe0\0\x10JFIF\0"),
    "program": ("a program", lambda: Path(sys.executable).read_bytes()[:999]),
    "index": ("the index of a Megatron dataset", lambda: b"MMIDIDX\0\0" + bytes(30)),
    "YAML": ("YAML", lambda: b"---\ntext: one\n"),
    "a fragment of HTML": ("markup", lambda: b"<div>Please sign in</div>\n"),
    "zeros": ("zeros", lambda: bytes(4096)),
    "UTF-16 in gzip": ("UTF-16 text", lambda: gzip.compress(LINE.decode().encode("utf-16"))),
    "pointer in bzip2": ("a Git LFS pointer", lambda: bz2.compress(LFS)),
}


def read(path: str | Path) -> list[bytes]:
    found = list(inputs.chunks([str(path)], WHOLE, BEGINNING, lambda size: None, ("text",)))
    return [text for chunk in found for text in chunk.batch(("text",)).columns[0].texts.to_list()]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".json", ".jsonl.gz", ".zst", ""])
@pytest.mark.parametrize("kind", CONTENTS)
def test_what_holds_no_documents_is_named(tmp_path: Path, kind: str, suffix: str) -> None:
    message, content = CONTENTS[kind]
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content())
    with pytest.raises(BadData, match=message) as error:
        read(path)
    assert str(path) in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"Access denied\n", "no Parquet"),
        ("a.parquet", b"PAR", "no Parquet"),
        ("a.jsonl", b"id,body\n1,one\n2,two\n3,three\n", "a table of text without a column of this name"),
        ("a.tsv.gz", gzip.compress(b"id\tbody\n1\tone\n", mtime=0), "no column 'text' in the first row, which has 'id', 'body'"),
        ("a.ds", np.arange(300, dtype=np.uint16).tobytes()[4:], "a.ds: holds no text but token ids"),
        ("a.jsonl.br", b"\x0b\x07\x80abc", "brotli"),
        ("a.jsonl.gz", b"garbage", r"is not compressed as its name \(.gz\) says"),
        ("a.txt", LINE.decode().encode("utf-16"), "UTF-16 text"),
        ("a.txt", LFS, "a Git LFS pointer"),
        ("a.csv", LFS, "a Git LFS pointer"),
        ("a.tsv", "id\ttext\n1\tone\n".encode("utf-16"), "UTF-16 text"),
        ("a.csv.gz", gzip.compress("id,text\n1,one\n".encode("utf-16"), mtime=0), "UTF-16 text"),
        ("a.csv", zipped(), "a zip archive"),
    ],
)
def test_what_its_name_says_and_its_bytes_deny(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=message):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        ("a.parquet", LINE, [b"one"]),
        ("a.jsonl.gz", LINE, [b"one"]),
        ("a.jsonl", b"\n \n" + LINE, [b"one"]),
        ("a.jsonl", b"\xef\xbb\xbf" + LINE, [b"one"]),
        ("a.jsonl", b"ORCish nonsense"[3:] + b"\n" + LINE, [b"one"]),
        ("a.jsonl", b"[1]\n" + LINE, [b"one"]),
        ("a.jsonl", LINE.strip() * 2 + b"\n" + LINE, [b"one"]),
        ("a.jsonl", b'{"text": "{a}{b}"}\r\n' + LINE, [b"{a}{b}", b"one"]),
        ("a.jsonl", b"1,2\nbad\n" + LINE, [b"one"]),
        ("a.jsonl", b"1,2\n3,4\n" + LINE, [b"one"]),
        ("a.csv", LINE, [b"one"]),
        ("a.csv", b"ORC,text\n1,one\n", [b"one"]),
        ("a.txt", b"<html> is a tag", [b"<html> is a tag"]),
        ("a.txt", b"ORC and GGUF are formats", [b"ORC and GGUF are formats"]),
        ("a.txt", b"[\n {", [b"[\n {"]),
    ],
)
def test_what_is_still_read(tmp_path: Path, name: str, content: bytes, texts: list[bytes]) -> None:
    (tmp_path / name).write_bytes(content)
    assert read(tmp_path / name) == texts


def test_a_remote_pointer() -> None:
    with fsspec.open("memory://foreign/a.parquet", "wb") as file:
        file.write(LFS)
    with pytest.raises(BadData, match="a Git LFS pointer"):
        read("memory://foreign/a.parquet")


@pytest.mark.parametrize("on_error", ["skip", "quarantine"])
def test_no_file_is_left_out_whole(run: Run, tmp_path: Path, demo_tokenizer: Path, on_error: str) -> None:
    (tmp_path / "a.parquet").write_bytes(LFS)
    (tmp_path / "b.jsonl").write_bytes(LINE)
    options = ["--tokenizer", demo_tokenizer, "--append-eod", "--on-error", on_error, "-o", tmp_path / "o"]
    done = run(tmp_path / "a.parquet", tmp_path / "b.jsonl", *options)
    assert done.returncode == 65
    assert "a.parquet: is not what its name (.parquet) says but a Git LFS pointer" in done.stderr
    assert f"git lfs pull --include {tmp_path}/a.parquet" in done.stderr
    assert not [name for name in os.listdir(tmp_path) if name.startswith("o_")]


def test_the_hint_for_several_objects_on_a_line(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(LINE + LONG.strip() * 2)
    done = run(tmp_path / "a.jsonl", "--tokenizer", demo_tokenizer, "-o", tmp_path / "o")
    assert done.returncode == 65
    assert "a.jsonl, line 2, byte 16: not JSON: Extra data" in done.stderr
    assert "hint: jq -c . FILE | lt-preprocess - ... separates several objects on a line" in done.stderr


@pytest.mark.parametrize(
    "content", [b"plain words\nand more\n", LONG.strip() * 3, LONG.replace(b"\n", b"\r") * 3, b"\x89PNX\n\0\n"]
)
def test_a_file_without_json_is_not_skipped_beside_others(run: Run, tmp_path: Path, demo_tokenizer: Path, content: bytes) -> None:
    """--on-error skip leaves lines out, not a file of another kind whose format has no name here."""
    (tmp_path / "a.jsonl").write_bytes(LINE)
    (tmp_path / "b.jsonl").write_bytes(content)
    options = ["--tokenizer", demo_tokenizer, "--append-eod", "--on-error", "skip", "-o", tmp_path / "o"]
    done = run(tmp_path / "a.jsonl", tmp_path / "b.jsonl", *options)
    assert done.returncode == 65
    assert "b.jsonl: no JSON lines: " in done.stderr
    assert not [name for name in os.listdir(tmp_path) if name.startswith("o_")]


def test_a_pipe_is_looked_at_too(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    (tmp_path / "a").write_bytes(LINE.decode().encode("utf-16"))
    with (tmp_path / "a").open("rb") as content:
        done = run("-", "--tokenizer", demo_tokenizer, "--append-eod", "--on-error", "skip", "-o", tmp_path / "o", stdin=content)
    assert done.returncode == 65
    assert "standard input: is UTF-16 text" in done.stderr
