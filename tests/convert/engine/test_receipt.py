"""The record beside a result: it comes back, and a damaged one is an error."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_convert.engine.receipt import ConversionRecord
from lt_convert.tensors.checksums import Checksums, Piece
from lt_shared.console import BadData

PIECES = [Piece("a", 0, 3, "0" * 32, ""), Piece("b", 2, 1, "1" * 32, "t"), Piece("b", 0, 2, "2" * 32, "t")]
RECORD = ConversionRecord(
    options={"to": "hf", "dtype": None},
    source=[{"path": "/x", "size_bytes": 1, "mtime_ns": 2}],
    files=Checksums.of([("a", 3), ("b", 3)], PIECES),
    tokenizer_file="tokenizer.model",
    iteration=7,
    loss=2.5,
)


def test_record_comes_back(tmp_path: Path) -> None:
    assert ConversionRecord.read(str(tmp_path)) is None
    (tmp_path / "lt-convert.json").write_bytes(RECORD.to_bytes())
    assert ConversionRecord.read(str(tmp_path)) == RECORD


def test_pieces_are_in_order_and_hashes_by_tensor() -> None:
    assert [piece.offset for piece in RECORD.files.pieces["b"]] == [0, 2]
    assert RECORD.files.tensors == {"t": ["2" * 32, "1" * 32]}


def test_is_up_to_date(tmp_path: Path) -> None:
    def made(options: dict[str, Any] = RECORD.options, source: Any = RECORD.source) -> bool:
        return RECORD.is_up_to_date(options, source, str(tmp_path))

    (tmp_path / "a").write_bytes(b"123")
    assert not made()
    (tmp_path / "b").write_bytes(b"123")
    assert made()
    assert not made(RECORD.options | {"dtype": "float16"})
    assert not made(source=[{"path": "/x", "size_bytes": 1, "mtime_ns": 3}])
    (tmp_path / "b").write_bytes(b"1234")
    assert not made()


def test_records_of_other_versions_count_as_none(tmp_path: Path) -> None:
    record = json.loads(RECORD.to_bytes()) | {"v": 1}
    (tmp_path / "lt-convert.json").write_text(json.dumps(record))
    assert ConversionRecord.read(str(tmp_path)) is None


@given(st.sampled_from(sorted(json.loads(RECORD.to_bytes()))), st.none() | st.integers() | st.text() | st.lists(st.integers()))
def test_any_wrong_field_is_an_error_or_a_difference(tmp_path_factory: pytest.TempPathFactory, field: str, value: Any) -> None:
    place = tmp_path_factory.getbasetemp()
    (place / "lt-convert.json").write_text(json.dumps(json.loads(RECORD.to_bytes()) | {field: value}))
    try:
        record = ConversionRecord.read(str(place))
    except BadData:
        return
    assert record is None or isinstance(record.files, Checksums)


@pytest.mark.parametrize(
    "piece",
    [["x", 3, "0", ""], [0, "3", "0", ""], [0, 3, 0, ""], [0, 3, "0", None], [0, 3, "0", "", "7"], [-1, 3, "0", ""], [0, 3], 7],
)
def test_malformed_pieces(tmp_path: Path, piece: Any) -> None:
    record = json.loads(RECORD.to_bytes())
    record["files"]["a"]["pieces"] = [piece]
    (tmp_path / "lt-convert.json").write_text(json.dumps(record))
    with pytest.raises(BadData, match="malformed"):
        ConversionRecord.read(str(tmp_path))


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b"])
def test_files_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    record = json.loads(RECORD.to_bytes())
    record["files"][name] = {"bytes": 1, "pieces": []}
    (tmp_path / "lt-convert.json").write_text(json.dumps(record))
    with pytest.raises(BadData, match="outside the directory"):
        ConversionRecord.read(str(tmp_path))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"v": 2}', '{"v": 3}', '{"v": 3, "more": 1}', "[" * 100_000])
def test_malformed_records(tmp_path: Path, content: str) -> None:
    (tmp_path / "lt-convert.json").write_text(content)
    with pytest.raises(BadData, match=r"lt-convert\.json: malformed"):
        ConversionRecord.read(str(tmp_path))
