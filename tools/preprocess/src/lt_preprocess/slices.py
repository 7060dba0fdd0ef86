"""The contiguous parts of the input that tasks of one job share.

Part i of n begins at i/n of the bytes. A plain file is cut there, at the start of the next line; a file that can only be read
from its beginning (compressed, Parquet, one plain text) goes whole to the part that holds its middle.
"""

from typing import NamedTuple


class Slice(NamedTuple):
    """Part `index` (from 0) of `count`."""

    index: int = 0
    count: int = 1
