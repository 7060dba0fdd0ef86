"""Arrow files and streams, and what `datasets` saves to disk, become the documents that pyarrow and datasets read."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.readers import chunks as chunk_limits
from lt_preprocess.readers import inputs
from lt_preprocess.readers.batch import BadLine
from lt_preprocess.readers.chunks import BEGINNING, Position
from lt_preprocess.readers.slices import WHOLE
from lt_shared.console import BadData, NoInput

SAMPLES = Path(__file__).parent / "samples"


def read(
    path: Path | str, keys: tuple[str, ...] = ("text",), start: Position = BEGINNING
) -> tuple[list[list[str]], list[BadLine]]:
    documents: list[list[str]] = []
    bad: list[BadLine] = []
    for chunk in inputs.chunks(inputs.expand_patterns([str(path)]), WHOLE, start, lambda size: None, keys):
        batch = chunk.batch(keys)
        texts = iter(batch.columns[0].texts.to_list())
        documents += [[next(texts).decode() for _ in range(count)] for count in batch.columns[0].texts_per_document.tolist()]
        bad += batch.bad_lines
    return documents, bad


def texts_of(path: Path | str) -> list[str]:
    documents, bad = read(path)
    assert not bad
    return ["".join(document) for document in documents]


def write(path: Path, table: Any, stream: bool, rows: int = 7, **options: Any) -> Path:
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(
        path, table.schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


TEXTS = [f"text {number}" for number in range(500)]
VALUES = st.one_of(st.none(), st.text(max_size=5))


@settings(max_examples=40)
@given(
    st.lists(VALUES, min_size=1, max_size=20),
    st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int16(), pa.string()), pa.string_view()]),
    st.booleans(),
    st.sampled_from([None, "lz4", "zstd"]),
    st.integers(1, 60),
)
def test_rows_are_what_pyarrow_reads(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], kind: Any, stream: bool, compression: Any, chunk_bytes: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "rows"
    table = pa.table({"id": list(range(len(rows))), "text": pa.array(rows, kind)})
    write(path, table, stream, rows=3, compression=compression, emit_dictionary_deltas=stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_limits, "CHUNK_BYTES", chunk_bytes)
        documents, bad = read(path)
        assert documents == [[row] if row else [] for row in rows if row is not None]
        assert [line.line for line in bad] == [number for number, row in enumerate(rows, 1) if row is None]
        for row in range(len(rows)):
            rest = [[text] if text else [] for text in rows[row:] if text is not None]
            assert read(path, start=Position(0, row, row + 1))[0] == rest


@pytest.mark.parametrize("stream", [True, False])
def test_lists_pipes_compression_and_stores(tmp_path: Path, stream: bool) -> None:
    lists = [["a", "", "b"], [], ["c"]]
    write(tmp_path / "a", pa.table({"text": pa.array(lists, pa.list_(pa.string()))}), stream)
    assert read(tmp_path / "a")[0] == [["a", "b"], [], ["c"]]
    write(tmp_path / "b.arrow", pa.table({"text": TEXTS}), stream)
    (tmp_path / "b.arrow.gz").write_bytes(gzip.compress((tmp_path / "b.arrow").read_bytes()))
    with fsspec.open("memory://arrow/b.arrow", "wb") as file:
        file.write((tmp_path / "b.arrow").read_bytes())
    for path in (tmp_path / "b.arrow", tmp_path / "b.arrow.gz", "memory://arrow/b.arrow"):
        assert texts_of(path) == TEXTS


def test_feather(tmp_path: Path) -> None:
    pa.feather.write_feather(pa.table({"text": TEXTS}), tmp_path / "a.feather", compression="zstd")
    assert texts_of(tmp_path / "a.feather") == TEXTS


@pytest.mark.parametrize("stream", [True, False])
def test_a_file_that_is_cut_off_anywhere(tmp_path: Path, stream: bool) -> None:
    content = write(tmp_path / "a", pa.table({"text": TEXTS[:40]}), stream).read_bytes()
    for length in range(16, len(content), 8):
        (tmp_path / "a.arrow").write_bytes(content[:length])
        with pytest.raises(BadData, match=r"a.arrow: (damaged Arrow|is cut off) after row \d+: ") as error:
            read(tmp_path / "a.arrow")
        assert error.value.hint


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_offsets_that_lead_beyond_the_text(tmp_path: Path, kind: Any) -> None:
    content = write(tmp_path / "a", pa.table({"text": pa.array(TEXTS[:9], kind)}), True, rows=9).read_bytes()
    dtype = np.int32 if kind == pa.string() else np.int64
    offsets = np.cumsum([0, *map(len, TEXTS[:9])]).astype(dtype).tobytes()
    at = content.index(offsets)
    for value in (-5, 1 << 30):
        begin, end = at + 3 * dtype().itemsize, at + 4 * dtype().itemsize
        damaged = content[:begin] + dtype(value).tobytes() + content[end:]
        (tmp_path / "a.arrow").write_bytes(damaged)
        with pytest.raises(BadData, match="damaged Arrow after row 9: offsets beyond the values"):
            read(tmp_path / "a.arrow")


def test_invalid_utf8_is_a_bad_row(tmp_path: Path) -> None:
    array = pa.array([b"one", b"t\xffo", b"three"], pa.binary()).view(pa.string())
    documents, [bad] = read(write(tmp_path / "a", pa.table({"text": array}), True))
    assert (documents, bad.line, bad.reason) == ([["one"], ["three"]], 2, "'text' is invalid UTF-8")


def test_a_directory_of_datasets_has_the_order_of_its_state(tmp_path: Path) -> None:
    expected = json.loads((SAMPLES / "datasets" / "texts.json").read_text())
    assert texts_of(SAMPLES / "datasets" / "train") == expected
    shutil.copytree(SAMPLES / "datasets" / "train", tmp_path / "train")
    state = json.loads((tmp_path / "train" / "state.json").read_text())
    state["_data_files"].reverse()
    (tmp_path / "train" / "state.json").write_text(json.dumps(state))
    assert sorted(texts_of(tmp_path / "train")) == sorted(expected) != texts_of(tmp_path / "train")
    (tmp_path / "more.jsonl").write_text('{"text": "more"}\n')
    assert sorted(texts_of(tmp_path)) == sorted([*expected, "more"])
    (tmp_path / "train" / "data-00001-of-00003.arrow").unlink()
    with pytest.raises(NoInput, match=r"data-00001-of-00003.arrow: no such file, but state.json lists it"):
        read(tmp_path)


def test_splits_are_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        shutil.copytree(SAMPLES / "datasets" / "train", tmp_path / split)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(BadData, match="a dataset of 2 splits: train, test") as error:
        read(tmp_path)
    assert error.value.hint == f"name a split: {tmp_path}/train"
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    shutil.rmtree(tmp_path / "test")
    assert len(texts_of(tmp_path)) == 7
