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

from lt_preprocess.readers import chunks, inputs, json_batch, text_template
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


@pytest.mark.parametrize("values", [pa.nulls(2), pa.array([None, []], pa.list_(pa.null())), pa.array([[None], None])])
def test_a_column_of_nulls_is_what_null_is_in_json_lines(tmp_path: Path, values: Any) -> None:
    path = write(tmp_path / "rows", values)
    lines = b"".join(json.dumps({"text": value}).encode() + b"\n" for value in values.to_pylist())
    expected = json_batch.json_lines(Lines.of(lines), "", ("text",))
    [found] = [chunk.batch(("text",)) for chunk in read(path, keys=("text",))[0]]
    assert content_of([found]) == content_of([expected])
    assert [bad.reason for bad in found.bad_lines] == [bad.reason for bad in expected.bad_lines]


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["text", "text", "title"])
    pq.write_table(table, tmp_path / "rows")
    with pytest.raises(BadData, match="rows: 2 columns are called 'text'"):
        read(tmp_path / "rows", keys=("text",))
    [found] = [chunk.batch(("title",)) for chunk in read(tmp_path / "rows", keys=("title",))[0]]
    assert content_of([found]) == [([b"c"], [1])]


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none"},
        {"use_dictionary": False, "compression": "none"},
        {"data_page_version": "2.0", "compression": "none"},
    ],
)
def test_a_flipped_bit_in_a_page_with_a_checksum_is_noticed(tmp_path: Path, options: dict[str, Any]) -> None:
    texts = [f"text number {number}" for number in range(200)]
    path = write(tmp_path / "rows", texts, write_page_checksum=True, **options)
    data = path.read_bytes()
    at = data.index(b"number 150")
    path.write_bytes(data[:at] + b"M" + data[at + 1 :])
    with pytest.raises(BadData, match=r"rows: damaged Parquet: .*CRC"):
        read(path, keys=("text",))


# A large value many times, in some bytes of file: by a dictionary, by a prefix shared with the row before, by lists.
LARGE = ["x" * 200_000 + str(number) for number in range(4)]
ENCODINGS: dict[str, tuple[pa.Table, dict[str, Any]]] = {
    "dictionary": (pa.table({"text": LARGE * 50}), {}),
    "dictionary of Arrow": (pa.table({"text": pa.array(LARGE * 50).dictionary_encode()}), {}),
    "shared prefix": (pa.table({"text": LARGE * 50}), {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}),
    "lists": (pa.table({"text": [LARGE] * 50}), {}),
    "small rows first": (pa.table({"text": ["y"] * 5000 + LARGE * 50}), {}),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_rows_that_are_a_thousand_times_larger_than_their_file(tmp_path: Path, encoding: str) -> None:
    table, options = ENCODINGS[encoding]
    path = tmp_path / "rows"
    pq.write_table(table, path, row_group_size=len(table), **options)
    assert path.stat().st_size < 100_000
    del table
    before = pa.total_allocated_bytes()
    most_bytes, texts = 0, []
    for chunk in inputs.chunks([str(path)], WHOLE, BEGINNING, lambda size: None, ("text",)):
        most_bytes = max(most_bytes, pa.total_allocated_bytes() - before)
        found = chunk.batch(("text",)).columns[0].texts
        assert int(found.offsets[-1]) <= chunks.CHUNK_BYTES + 4 * 200_010
        texts += found.to_list()
    del chunk
    values = ENCODINGS[encoding][0]["text"].to_pylist()
    assert texts == [text.encode() for value in values for text in ([value] if isinstance(value, str) else value)]
    # 40 MB in all; where small rows come first, many are decoded at once.
    assert most_bytes < (60e6 if encoding == "small rows first" else 25e6)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(VALUES, st.one_of(st.none(), st.fixed_dictionaries({"text": VALUES, "b.c": TEXT}))), min_size=1, max_size=9
    ),
    st.integers(1, 5),
)
def test_fields_of_structs_and_optional_columns(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], group_rows: int
) -> None:
    """A path leads through structs as through objects in JSON lines; an optional column may be null or missing."""
    path = tmp_path_factory.getbasetemp() / "structs.parquet"
    kind = pa.struct({"text": pa.string(), "b.c": pa.string()})
    table = pa.table({"title": pa.array([row[0] for row in rows], pa.string()), "meta": pa.array([row[1] for row in rows], kind)})
    pq.write_table(table, path, row_group_size=group_rows)
    keys = text_template.parse(r"{title?}{meta.text}{meta.b\.c?}{missing?}").json_keys
    lines = b"".join(json.dumps({"title": row[0], "meta": row[1]}).encode() + b"\n" for row in rows)
    expected = json_batch.json_lines(Lines.of(lines), "", keys)
    found = [chunk.batch(keys) for chunk in read(path, keys=keys)[0]]
    assert content_of(found) == content_of([expected])
    assert [line.offset for batch in found for line in batch.bad_lines] == [
        int(line.line or 0) - 1 for line in expected.bad_lines
    ]
