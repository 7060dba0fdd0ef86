"""A small plan of output files for the writers of lt-convert, and the bytes that it must become."""

from pathlib import Path
from typing import Any

import pytest

from lt_convert.engine import output_writer
from lt_convert.tensors.output_files import OutputFile, Payload
from lt_convert.tensors.tensor import tensor_in_files

ROWS, COLUMNS = 200, 50


def plan(values: Path, tensors: int = 4) -> list[OutputFile]:
    """Two files with tensors, one in a directory, and two without."""
    whole = tensor_in_files("t", "float32", (ROWS, COLUMNS), [((0, 0), (ROWS, COLUMNS), str(values), 0)])
    step = ROWS // tensors
    rows = [Payload(f"rows{start}", whole.take(0, range(start, start + step))) for start in range(0, ROWS, step)]
    return [
        OutputFile("a/one.bin", (b"head", *rows, b"tail")),
        OutputFile("two.bin", (Payload("all", whole.transposed()), b"")),
        OutputFile("a/index", (b"index",)),
        OutputFile("last", (b"it is ", b"complete")),
    ]


def expected(values: Path) -> dict[str, bytes]:
    data = values.read_bytes()
    transposed = b"".join(data[4 * (row * COLUMNS + column) :][:4] for column in range(COLUMNS) for row in range(ROWS))
    return {"a/one.bin": b"head" + data + b"tail", "two.bin": transposed, "a/index": b"index", "last": b"it is complete"}


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def fail_after(monkeypatch: pytest.MonkeyPatch, blocks: int, error: BaseException) -> None:
    """Reading fails after some blocks."""
    true = output_writer.contents
    left = [blocks]

    def failing(segment: Any, reader: Any) -> Any:
        for data in true(segment, reader):
            left[0] -= 1
            if left[0] < 0:
                raise error
            yield data

    monkeypatch.setattr(output_writer, "contents", failing)
