"""Tables, tar archives, WARC files and lines of text become the documents that the libraries of these formats read."""

import csv
import gzip
import io
import json
import lzma
import random
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pandas as pd
import pytest
import zstandard

from lt_preprocess.readers import chunks as chunk_limits
from lt_preprocess.readers import inputs
from lt_preprocess.readers.batch import BadLine
from lt_preprocess.readers.chunks import BEGINNING, Position
from lt_preprocess.readers.slices import WHOLE, Slice
from lt_shared.console import BadData, UsageError

Run = Callable[..., subprocess.CompletedProcess[str]]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
}
TEXTS = ["one", "", 'a "quoted", word', "zwei\nZeilen", "tab\tand ; and |", "ünïcode 漢字", "NA", "  spaces  ", "\r\n"]


def read(
    path: Path | str, keys: tuple[str, ...] = ("text",), start: Position = BEGINNING, **options: Any
) -> tuple[list[list[str]], list[BadLine]]:
    """The texts of each document of the first key, and the bad lines."""
    documents: list[list[str]] = []
    bad: list[BadLine] = []
    for chunk in inputs.chunks([str(path)], WHOLE, start, lambda size: None, keys, **options):
        batch = chunk.batch(keys)
        texts = iter(batch.columns[0].texts.to_list())
        documents += [[next(texts).decode() for _ in range(count)] for count in batch.columns[0].texts_per_document.tolist()]
        bad += batch.bad_lines
        assert batch.lines.total - len(batch.lines.left_out) == len(batch.columns[0].texts_per_document)
    return documents, bad


def texts_of(path: Path | str, **options: Any) -> list[str]:
    documents, bad = read(path, **options)
    assert not bad
    return ["".join(document) for document in documents]


def tar_of(members: dict[str, bytes], pax: bool = True) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT if pax else tarfile.GNU_FORMAT) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize(("separator", "suffix"), [(",", ".csv"), ("\t", ".tsv"), (";", ".csv"), ("|", "")])
def test_a_table_has_the_rows_that_pandas_reads(tmp_path: Path, separator: str, suffix: str, compression: str) -> None:
    table = pd.DataFrame({"id": range(len(TEXTS)), "text": TEXTS, "other": ["x"] * len(TEXTS)})
    path = tmp_path / f"a{suffix}{compression}"
    path.write_bytes(COMPRESSIONS[compression](table.to_csv(index=False, sep=separator).encode()))
    expected = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, engine="python", compression="infer")
    assert expected["text"].tolist() == TEXTS
    assert texts_of(path) == TEXTS


@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize("prefix", ["", "\ufeff"])
def test_a_first_row_longer_than_the_head(tmp_path: Path, separator: str, prefix: str) -> None:
    file = io.StringIO(newline="")
    names = [f"a column of numbers,\n{number}" for number in range(60)] + ["text"]
    csv.writer(file, delimiter=separator).writerows([names, [*"7" * 60, "one"], [*"8" * 60, "two"]])
    (tmp_path / "a.csv").write_text(prefix + file.getvalue(), encoding="utf-8", newline="")
    documents, bad = read(tmp_path / "a.csv")
    assert (documents, bad) == ([["one"], ["two"]], [])


@pytest.mark.parametrize("name_bytes", [600, 50_000])
def test_a_wide_table_on_standard_input(run: Run, tmp_path: Path, demo_tokenizer: Path, name_bytes: int) -> None:
    table = f"{'x' * name_bytes},text\n1,one\n2,two\n3,three\n"
    done = run("-", "--tokenizer", demo_tokenizer, "-o", tmp_path / "o", "--plain", input=table)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["text"] for line in run("cat", done.stdout.strip()).stdout.splitlines()] == ["one", "two", "three"]


def test_a_table_that_comes_through_a_pipe_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter([b"id,text\n", b"1,one\n", b"2,two\n", b"3,three\n"])

    class Pipe(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return next(lines, b"")

    monkeypatch.setattr(inputs, "_open", lambda path: Pipe())
    assert read("-")[0] == [["one"], ["two"], ["three"]]


@pytest.mark.parametrize("content", [b"id,text\r1,one\r2,two\r", b'"a\rb",text\r1,"x"\r'])
def test_a_table_whose_lines_end_in_carriage_returns(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a b.csv").write_bytes(content)
    with pytest.raises(BadData, match=r"a b.csv: a table whose lines end in a carriage return alone") as error:
        read(tmp_path / "a b.csv")
    assert error.value.hint == f"tr '\\r' '\\n' < '{tmp_path}/a b.csv' | lt-preprocess - ..."


def test_a_carriage_return_in_quotes_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'"te\rxt",text\r\n1,"x\ry"\r\n')
    assert read(tmp_path / "a.csv")[0] == [["x\ry"]]


@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
def test_a_table_that_only_its_bytes_tell(tmp_path: Path, quoting: int) -> None:
    rows = [[f"id{number}", f"line {number}"] for number in range(9)]
    file = io.StringIO()
    csv.writer(file, quoting=quoting, lineterminator="\n").writerows([["id", "text"], *rows])  # type: ignore[arg-type]
    (tmp_path / "a.jsonl").write_text(f"\ufeff{file.getvalue()}", encoding="utf-8")
    assert texts_of(tmp_path / "a.jsonl") == [row[1] for row in rows]


def test_rows_that_are_no_documents_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'id,text\n1,one\n2\n\n3,"th\nree"\n4,fo\xffur\n5,five,more\n6,six\n')
    documents, bad = read(tmp_path / "a.csv")
    assert documents == [["one"], ["th\nree"], ["six"]]
    assert [(line.line, line.is_row) for line in bad] == [(2, True), (4, True), (5, True)]
    assert [line.reason.partition(",")[0] for line in bad] == [
        "1 fields",
        "invalid UTF-8: invalid start byte at byte 3 of the text",
        "3 fields",
    ]
    assert str(bad[0]) == f"{tmp_path}/a.csv, row 2: 1 fields, the first row has 2"
    assert bad[1].raw == '{"text": "fo\ufffdur"}'.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'text\n"a"b\nc\n', r"a.csv, line 2: not a table of text: ',' expected after '\"'"),
        (b'text\n"a\nb\nc\n', "a.csv, line 4: not a table of text: unexpected end of data"),
        (b"text,text\na,b\n", "2 columns are called 'text'"),
        (b"title,body\na,b\n", "no column 'text' in the first row, which has 'title', 'body'"),
    ],
)
def test_a_table_that_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(BadData, match=message) as error:
        read(tmp_path / "a.csv")
    assert error.value.hint


SHARD = {
    "a/0001.jpg": b"\xff\xd8\xff",
    "a/0001.txt": b"a caption",
    "a/0001.json": b'{"text": "not this", "url": "u1"}',
    "a/0002.json": b'{"text": "of the object", "url": "u2"}',
    "a/0003.JSON": b'{"text": ["two", "texts"], "url": "u3"}',
    "README": b"is passed over",
    "a/0004.txt.gz": gzip.compress("ünï".encode()),
    "a/0004.json": b'{"url": "u4"}',
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("pax", [True, False])
def test_samples_of_an_archive(tmp_path: Path, compression: str, pax: bool) -> None:
    path = tmp_path / f"a.tar{compression}"
    path.write_bytes(COMPRESSIONS[compression](tar_of(SHARD, pax)))
    assert read(path) == ([["a caption"], ["of the object"], ["two", "texts"], ["ünï"]], [])
    assert read(path, ("url", "text"))[0] == [["u1"], ["u2"], ["u3"], ["u4"]]
    assert read(path, ("txt",))[1][0].reason == "sample 'a/0002': no key 'txt', it has 'text', 'url'"


def test_lines_of_an_archive(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"line {number}"}).encode() for number in range(99)]
    members = {
        "b.jsonl": b"\n".join(lines[:40]) + b"\n\n",
        "c.jsonl.zst": zstandard.compress(b"\r\n".join(lines[40:])),
        f"{'d' * 300}/{'é' * 90}.jsonl": b'{"text": "long name"}',
    }
    for pax in (True, False):
        (tmp_path / "a").write_bytes(tar_of(members, pax))
        assert texts_of(tmp_path / "a") == [*(f"line {number}" for number in range(99)), "long name"]
    (tmp_path / "a").write_bytes(tar_of({"b.jsonl": b'{"text": "one"}\n\n{"text": 2}\n'}))
    _, [bad] = read(tmp_path / "a")
    assert str(bad) == f"{tmp_path}/a, row 2: b.jsonl, line 3: 'text' is a number, expected a string or a list of strings"


def test_archives_that_were_joined(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of({"1.txt": b"one"}) + tar_of({"2.txt": b"two"}))
    assert texts_of(tmp_path / "a.tar") == ["one", "two"]


def test_a_damaged_archive_is_named_with_its_byte(tmp_path: Path) -> None:
    content = tar_of({f"{number}.txt": b"text" * 99 for number in range(9)}, pax=False)
    path = tmp_path / "a.tar"
    for length, message in [(512 * 6, "no end mark"), (512 * 3 + 9, "1.txt is cut off"), (512 * 4 + 9, "truncated header")]:
        path.write_bytes(content[:length])
        with pytest.raises(BadData, match=rf"a.tar, byte \d+ of the content: .*{message}") as error:
            read(path)
        assert error.value.hint == "copy the archive again"
    path.write_bytes(content[: 512 * 4] + b"x" * 512 + content[512 * 5 :])
    with pytest.raises(BadData, match=r"a.tar, byte 2048 of the content: damaged tar archive: .*checksum|invalid header"):
        read(path)
    path.write_bytes(tar_of({"1.txt": b"a", "1.json": b"{}"}) + tar_of({"1.txt": b"b"}))
    with pytest.raises(BadData, match=r"1.txt is twice in sample '1'"):
        read(path)


def warc_record(kind: str, body: bytes, media_type: str = "text/plain") -> bytes:
    header = f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:x>\r\nContent-Type: {media_type}\r\n"
    return f"{header}Content-Length: {len(body)}\r\n\r\n".encode() + body + b"\r\n\r\n"


WARC = [warc_record("warcinfo", b"software: x\r\n", "application/warc-fields")]
WARC += [warc_record("conversion", text.encode()) for text in TEXTS]


@pytest.mark.parametrize("compress", [b"".join, lambda parts: b"".join(map(gzip.compress, parts))])
def test_texts_of_a_wet_file(tmp_path: Path, compress: Callable[[list[bytes]], bytes]) -> None:
    (tmp_path / "a.warc.wet.gz").write_bytes(compress(WARC))
    assert texts_of(tmp_path / "a.warc.wet.gz") == TEXTS


def test_records_that_are_no_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(WARC[0] + warc_record("conversion", b"<p>", "text/html") + WARC[1])
    documents, [bad] = read(path)
    assert (documents, str(bad)) == ([["one"]], f"{path}, row 1: a conversion record of text/html, expected text/plain")
    for content, message in [
        (b"".join([WARC[0], warc_record("response", b"HTTP/1.1 200 OK\r\n\r\n<p>", "application/http")]), "holds web pages"),
        (WARC[0], "a WARC archive without texts: its records are warcinfo"),
        (b"".join(WARC)[:-9], r"byte \d+ of the content: this WARC record is cut off"),
        (
            b"".join(WARC[:2]) + b"garbage\n",
            rf"byte {len(WARC[0] + WARC[1])} of the content: damaged WARC: no record",
        ),
        (WARC[1].replace(b"Length: 3", b"Length: x"), "byte 0 of the content: damaged WARC: Content-Length is 'x'"),
    ]:
        path.write_bytes(content)
        with pytest.raises(BadData, match=message) as error:
            read(path)
        assert error.value.hint


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_text_has_a_document_a_line(tmp_path: Path, compression: str) -> None:
    generator = random.Random(5)
    lines = ["".join(generator.choices("ab \té\r", k=generator.randrange(9))) for _ in range(500)]
    content = "\ufeff" + "\r\n".join(lines[:250]) + "\n" + "\n".join(lines[250:])
    path = tmp_path / f"a.txt{compression}"
    path.write_bytes(COMPRESSIONS[compression](content.encode()))
    expected = [line.removesuffix("\r") for line in content[1:].split("\n") if line.strip(" \t\r")]
    assert texts_of(path, sample_by="line") == expected
    _, [bad] = read_bytes(path, COMPRESSIONS[compression](b"one\n\n t\xffwo\nthree"))
    assert (bad.line, bad.offset, bad.raw) == (3, 5, b" t\xffwo")
    (tmp_path / "a.jsonl").write_text('{"text": "one"}')
    assert texts_of(tmp_path / "a.jsonl", sample_by="line") == ["one"]


def read_bytes(path: Path, content: bytes) -> tuple[list[list[str]], list[BadLine]]:
    path.write_bytes(content)
    return read(path, sample_by="line")


def test_shards_of_lines_are_cut_inside_a_file(tmp_path: Path) -> None:
    texts = [f"line {number}" for number in range(1000)]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    shards = []
    for index in range(3):
        parts = inputs.chunks([str(tmp_path / "a.txt")], Slice(index, 3), BEGINNING, lambda size: None, ("text",), "line")
        shards.append([text.decode() for chunk in parts for text in chunk.batch(("text",)).columns[0].texts.to_list()])
    assert [text for shard in shards for text in shard] == texts
    assert all(len(shard) > 300 for shard in shards)


FILES: dict[str, bytes] = {
    "a.csv": b"text\n" + b"".join(b"row %d\n" % number for number in range(500)),
    "a.tar": tar_of({f"{number}.txt": b"row %d" % number for number in range(500)}),
    "a.warc": b"".join(warc_record("conversion", b"row %d" % number) for number in range(500)),
}


@pytest.mark.parametrize("name", FILES)
def test_reading_resumes_after_every_chunk(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_limits, "CHUNK_BYTES", 9000)
    path = tmp_path / name
    path.write_bytes(FILES[name])
    counted: list[int] = []
    ends = [chunk.end for chunk in inputs.chunks([str(path)], WHOLE, BEGINNING, counted.append, ("text",))]
    assert len(ends) > 9
    assert sum(counted) == path.stat().st_size
    for end in ends:
        assert read(path, start=end)[0] == [[f"row {number}"] for number in range(end.offset, 500)]


@pytest.mark.parametrize("name", FILES)
def test_a_remote_file_and_a_shard(tmp_path: Path, name: str) -> None:
    with fsspec.open(f"memory://records/{name}", "wb") as file:
        file.write(FILES[name])
    assert texts_of(f"memory://records/{name}") == [f"row {number}" for number in range(500)]
    (tmp_path / name).write_bytes(FILES[name])
    parts = [
        list(inputs.chunks([str(tmp_path / name)], Slice(index, 2), BEGINNING, lambda size: None, ("text",))) for index in (0, 1)
    ]
    assert sorted(bool(part) for part in parts) == [False, True]


def test_text_has_no_keys(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    with pytest.raises(UsageError, match="a plain text has no keys"):
        read(tmp_path / "a.txt", ("text", "title"), sample_by="line")


@pytest.mark.parametrize("name", FILES)
def test_a_dataset_of_it_names_file_and_row(run: Run, tmp_path: Path, demo_tokenizer: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    done = run(tmp_path / name, "--tokenizer", demo_tokenizer, "--append-eod", "-o", tmp_path / "o", "--plain")
    assert done.returncode == 0, done.stderr
    prefix = done.stdout.strip()
    [line] = run("grep", "row 333$", prefix).stdout.splitlines()
    record = json.loads(line)
    assert (record["path"], record["row"], record["text"].split("<")[0]) == (str(tmp_path / name), 334, "row 333")
    assert "problem" not in record
    assert run("verify", "--deep", "9", prefix).returncode == 0


def test_lines_of_standard_input(run: Run, tmp_path: Path, demo_tokenizer: Path) -> None:
    options = ["--tokenizer", demo_tokenizer, "--append-eod", "-o", tmp_path / "o", "--plain", "--sample-by", "line"]
    done = run("-", *options, input="one\n<p>two\n")
    assert done.returncode == 0, done.stderr
    lines = run("cat", done.stdout.strip()).stdout.splitlines()
    assert [json.loads(line)["text"].split("<|")[0] for line in lines] == ["one", "<p>two"]
