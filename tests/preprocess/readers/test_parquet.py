"""Rows of Parquet files become the documents that the same values in JSON lines become."""

import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.readers import chunks, inputs, json_batch
from lt_preprocess.readers.batch import Batch
from lt_preprocess.readers.chunks import BEGINNING, Chunk, Lines, Position
from lt_preprocess.readers.slices import WHOLE, Slice
from lt_shared.console import BadData, UsageError

KEYS = ("text", "title")


def read(path: str | Path, start: Position = BEGINNING, keys: tuple[str, ...] = KEYS) -> tuple[list[Chunk], int]:
    counted: list[int] = []
    return list(inputs.chunks([str(path)], WHOLE, start, counted.append, keys)), sum(counted)


def content_of(found: list[Batch]) -> list[Any]:
    """For each key, the texts and the number of texts of each document."""
    columns = zip(*(batch.columns for batch in found), strict=True)
    return [
        (
            [text for column in of_key for text in column.texts.to_list()],
            [count for column in of_key for count in column.texts_per_document.tolist()],
        )
        for of_key in map(list, columns)
    ]


TEXT = st.text(max_size=5)
VALUES = st.one_of(st.none(), TEXT)
LISTS = st.one_of(st.none(), st.lists(VALUES, max_size=3))


@settings(max_examples=60)
@given(
    st.lists(st.tuples(VALUES, LISTS), min_size=1, max_size=20),
    st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()]),
    st.sampled_from([pa.list_(pa.string()), pa.large_list(pa.large_string())]),
    st.integers(1, 7),
    st.integers(1, 60),
)
def test_rows_are_what_the_same_json_lines_are(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], text: Any, title: Any, group_rows: int, chunk_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows.parquet"
    columns = {"id": list(range(len(rows))), "text": pa.array([row[0] for row in rows], text)}
    table = pa.table(columns | {"title": pa.array([row[1] for row in rows], title)})
    pq.write_table(table, path, row_group_size=group_rows)
    lines = b"".join(json.dumps({"text": row[0], "title": row[1]}).encode() + b"\n" for row in rows)
    expected = json_batch.json_lines(Lines.of(lines), "", KEYS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
        found, counted = read(path)
        assert counted == path.stat().st_size
        batches = [chunk.batch(KEYS) for chunk in found]
        assert content_of(batches) == content_of([expected])
        bad_rows = [bad for batch in batches for bad in batch.bad_lines]
        assert [bad.reason for bad in bad_rows] == [bad.reason for bad in expected.bad_lines]
        assert [bad.line for bad in bad_rows] == [bad.line for bad in expected.bad_lines]
        assert [json.loads(bad.raw) for bad in bad_rows] == [json.loads(bad.raw) for bad in expected.bad_lines]
        for number, chunk in enumerate(found):
            rest, counted_in_rest = read(path, chunk.end)
            again = [each.batch(KEYS) for each in rest]
            assert counted_in_rest == path.stat().st_size
            rest_of_first = batches[number + 1 :]
            assert (content_of(again) if again else []) == (content_of(rest_of_first) if rest_of_first else [])


def write(path: Path, texts: Any, **options: Any) -> Path:
    pq.write_table(pa.table({"text": texts}), path, **options)
    return path


def test_a_large_row_group_is_read_in_small_chunks(tmp_path: Path) -> None:
    texts = [f"{number} " * 200 for number in range(10_000)]
    path = write(tmp_path / "rows", texts, row_group_size=10_000)
    assert pq.ParquetFile(path).num_row_groups == 1
    found, _ = read(path, keys=("text",))
    assert len(found) > 5
    [(back, _)] = content_of([chunk.batch(("text",)) for chunk in found])
    assert back == [text.encode() for text in texts]


def test_remote_and_whole_in_one_part(tmp_path: Path) -> None:
    path = write(tmp_path / "rows", ["a", "b"])
    with fsspec.open("memory://parquet/rows", "wb") as file:
        file.write(path.read_bytes())
    parts = [
        list(inputs.chunks(["memory://parquet/rows"], Slice(index, 3), BEGINNING, lambda size: None, ("text",)))
        for index in range(3)
    ]
    assert [len(part) for part in parts] == [0, 1, 0]
    assert content_of([parts[1][0].batch(("text",))]) == [([b"a", b"b"], [1, 1])]


def test_invalid_utf8_is_a_bad_row(tmp_path: Path) -> None:
    values = [b"a", b"\xff", b"\xe6", b"\x97\xa5", b"\xe6\x97\xa5", b"b"]
    path = write(tmp_path / "rows", pa.array(values, pa.binary()).view(pa.string()))
    found = read(path, keys=("text",))[0][0].batch(("text",))
    assert content_of([found]) == [([b"a", b"\xe6\x97\xa5", b"b"], [1, 1, 1])]
    assert [str(bad) for bad in found.bad_lines] == [f"{path}, row {row}: 'text' is invalid UTF-8" for row in (2, 3, 4)]
    raw = [json.loads(bad.raw)["text"].encode(errors="surrogateescape") for bad in found.bad_lines]
    assert raw == values[1:4]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1]), "column 'text' is of type int64, expected strings or lists of strings"),
        (pa.array([b"a"]), "column 'text' is of type binary"),
        (pa.array([[1]]), "column 'text' is of type list<.*int64>"),
        (pa.array([None]), "column 'text' is of type null"),
    ],
)
def test_columns_that_hold_no_texts(tmp_path: Path, column: Any, message: str) -> None:
    with pytest.raises(BadData, match=message):
        read(write(tmp_path / "rows", column), keys=("text",))


def test_a_missing_column(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="rows: no column 'title'; there are text"):
        read(write(tmp_path / "rows", ["a"]))


@pytest.mark.parametrize("damage", ["end", "middle"])
def test_damaged_files(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "rows", [f"text number {number}" for number in range(100_000)])
    data = bytearray(path.read_bytes())
    if damage == "end":
        del data[-100:]
    else:
        data[1000:5000] = b"\xff" * 4000
    path.write_bytes(data)
    with pytest.raises(BadData, match="rows: damaged Parquet"):
        read(path, keys=("text",))


def test_empty_tables(tmp_path: Path) -> None:
    assert read(write(tmp_path / "rows", pa.array([], pa.string())), keys=("text",))[0] == []


def test_a_pipe_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rows", ["a"])
    with open(path, "rb") as file:
        monkeypatch.setattr("sys.stdin", file)
        with pytest.raises(BadData, match="standard input: Parquet cannot be read from a pipe"):
            read("-", keys=("text",))
        with pytest.raises(UsageError):
            list(inputs.chunks(["-"], Slice(0, 2), BEGINNING, lambda size: None, ("text",)))
