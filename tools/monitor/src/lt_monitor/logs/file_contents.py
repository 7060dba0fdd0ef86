"""Recognise files that are no text logs: empty, blank, UTF-16, binary, or compressed in a way that cannot be read."""

import re
import shlex
from typing import IO

from lt_monitor.logs.compressed_logs import DecompressedLog, problem_of
from lt_shared.console import BadData, NoInput, ToolError

COMPRESSION = re.compile(r"\.(?:gz|xz|bz2|zst|lz4|lz|Z)$")
_NO_TEXT = {
    b"\x04\x22\x4d\x18": ("compressed with lz4", "lz4cat"),
    b"LZIP": ("compressed with lzip", "lzip -dc"),
    b"\x1f\x9d": ("compressed with compress", "zcat"),
    b"PK\x03\x04": ("a ZIP archive", "unzip -p"),
    b"\xff\xfe": ("UTF-16", "iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16", "iconv -f UTF-16 -t UTF-8"),
}
PROBE_BYTES = 1 << 14
# Control characters that are rare in logs. A hole of zeros does not count, because rotation by copying leaves such holes.
_CONTROLS = bytes([*range(7), *range(14, 27), *range(28, 32), 127])
_HOLE = re.compile(rb"\0{512,}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANKS = b" \t\r\n\f\v"
MAXIMUM_CONTROL_SHARE = 0.05
BLOCK_BYTES = 1 << 21


def text_problem(shown: str, file: IO[bytes]) -> ToolError | None:
    """Return why the open log `shown` cannot be read (empty, blank, UTF-16 or binary, not to be decompressed), or None."""
    file.seek(0)
    begin = file.read(PROBE_BYTES)
    # The end of a compressed log comes only after everything before is decompressed.
    end = begin if isinstance(file, DecompressedLog) else _end(file)
    if (damage := damage_problem(shown, file, len(begin))) is not None:
        return damage
    if not begin:
        return NoInput(f"{shown}: is empty", "name the log that the job writes, or wait for its first line")
    if (problem := packing_problem(shown, begin)) is not None:
        return problem
    for part in (begin, end):
        if (problem := binary_problem(shown, part)) is not None:
            return problem
    if _is_blank(begin) and _is_blank(end):
        return _blank_problem(shown, file)
    return None


def binary_problem(shown: str, part: bytes) -> ToolError | None:
    """Return the problem of a log if too many of the first PROBE_BYTES in `part` are control characters."""
    text = _HOLE.sub(b"", part[:PROBE_BYTES])
    if len(text) - len(text.translate(None, _CONTROLS)) > MAXIMUM_CONTROL_SHARE * len(text):
        return BadData(f"{shown}: is binary, not text", "name the log that the job writes")
    return None


def damage_problem(shown: str, log: IO[bytes], content_bytes: int) -> ToolError | None:
    """Return the problem of a compressed log that is damaged before its first content."""
    damage = problem_of(log)
    return BadData(f"{shown}: {damage}", "compress or copy the log again") if damage is not None and not content_bytes else None


def _end(file: IO[bytes]) -> bytes:
    file.seek(max(0, file.seek(0, 2) - PROBE_BYTES))
    return file.read(PROBE_BYTES)


def _is_blank(text: bytes) -> bool:
    return not text.removeprefix(_BYTE_ORDER_MARK).strip(_BLANKS + b"\0")


def _blank_problem(shown: str, file: IO[bytes]) -> ToolError | None:
    """Return the problem of a log that begins and ends with blanks, or None if it has text in between."""
    file.seek(0)
    has_zeros, block = False, file.read(BLOCK_BYTES)
    while block:
        if not _is_blank(block):
            return None
        has_zeros = has_zeros or b"\0" in block
        block = file.read(BLOCK_BYTES)
    if has_zeros:
        return BadData(f"{shown}: holds nothing but zeros, no text", "name the log that the job writes")
    return NoInput(f"{shown}: holds nothing but blank lines", "name the log that the job writes, or wait for its first line")


def packing_problem(shown: str, begin: bytes) -> ToolError | None:
    """Return how a file with these first bytes is packed or encoded, with a remedy; None if it is not, or can be decompressed."""
    how = packed(begin)
    if how is None:
        return None
    return BadData(f"{shown}: is {how[0]}, not text", f"{how[1]} {shlex.quote(shown)} | lt-monitor ... -")


def packed(begin: bytes) -> tuple[str, str] | None:
    """Return the packing of a file with these first bytes, and the program that unpacks it."""
    return next((how for magic, how in _NO_TEXT.items() if begin.startswith(magic)), None)
