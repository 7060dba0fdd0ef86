"""Rows of a Parquet file, where pyarrow is installed."""

import importlib
from collections.abc import Sequence
from typing import Any

from lt_shared.console import BadData, Unavailable
from lt_shared.files import storage


def read(path: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Rows by their numbers from 1. Raises Unavailable without pyarrow, BadData for a damaged file and a row beyond its end."""
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise Unavailable(f"{path}: reading Parquet needs pyarrow", "pip install pyarrow") from None
    row_by_number: dict[int, dict[str, Any]] = {}
    try:
        with storage.open_read(path) as opened, parquet.ParquetFile(opened) as file:
            first = 1
            for group in range(file.num_row_groups):
                end = first + file.metadata.row_group(group).num_rows
                group_numbers = sorted({number for number in numbers if first <= number < end})
                if group_numbers:
                    rows = file.read_row_group(group).take([number - first for number in group_numbers]).to_pylist()
                    row_by_number |= dict(zip(group_numbers, rows, strict=True))
                first = end
        return [row_by_number[number] for number in numbers]
    except KeyError as error:
        raise BadData(f"{path}: has no row {error}") from None
    except (importlib.import_module("pyarrow").ArrowException, OSError) as error:
        raise BadData(f"{path}: damaged Parquet: {error}") from None
