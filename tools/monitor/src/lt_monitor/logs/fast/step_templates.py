"""Collect the line templates of a log and read its step lines with the templates.

A log has a few shapes of step lines, so templates pay. A log with a new shape in every line must not make the parser slow, so the
number of templates is limited; lines of further shapes are read one by one.
"""

from collections.abc import Callable

import numpy as np

from lt_monitor.logs.fast.line_templates import LineTemplate
from lt_monitor.logs.fast.step_rows import StepRows
from lt_monitor.logs.line_parsers import StepLine
from lt_monitor.logs.lines import Line

MINIMUM_ALIKE_LINES = 16
MAXIMUM_TEMPLATES = 256
MAXIMUM_SHAPES = 4096
MAXIMUM_TEMPLATE_BYTES = 2000
# The search for a position's line takes as long as a search for all line ends in so many bytes.
BYTES_PER_SEARCH = 1 << 10

_DIGITS_TO_ZERO = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))


class StepTemplates:
    """The templates of a log, empty at first. The parser reads the first line of a shape and passes it to `learn`."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[LineTemplate]] = {}
        self._count = 0
        self._shapes: set[bytes] = set()

    def __len__(self) -> int:
        return self._count

    def take(self, block: bytes, offset: int, starts: np.ndarray, lengths: np.ndarray, rows: list[StepRows]) -> np.ndarray:
        """Add the lines that fit a template to `rows`; return which lines these are (bool)."""
        cells = np.frombuffer(block, dtype=np.uint8)
        is_read = np.zeros(len(starts), dtype=bool)
        for length, templates in self._by_length.items():
            width = templates[0].width
            indexes = np.flatnonzero((lengths == length) & (starts <= len(block) - width))
            if len(indexes) < MINIMUM_ALIKE_LINES:
                continue
            lines = np.lib.stride_tricks.sliding_window_view(cells, width)[starts[indexes]]
            for template in templates:
                alike = template.matches(lines)
                if not alike.any():
                    continue
                rows.append(StepRows(template, starts[indexes[alike]] + offset, lines if alike.all() else lines[alike]))
                is_read[indexes[alike]] = True
                indexes, lines = indexes[~alike], lines[~alike]
                if not len(indexes):
                    break
        return is_read

    def learn(self, raw: bytes, line: Line, step: StepLine, unread_digits: Callable[[], list[int]]) -> bool:
        """Make a template for the line if its shape is new; return whether lines of this shape have a template.

        `unread_digits` returns the indexes of digits before the step that may be others in lines of this shape.
        """
        shape = raw.translate(_DIGITS_TO_ZERO)
        if shape in self._shapes:
            return True
        if len(self._shapes) >= MAXIMUM_SHAPES or self._count >= MAXIMUM_TEMPLATES or len(raw) > MAXIMUM_TEMPLATE_BYTES:
            return False
        self._shapes.add(shape)
        template = LineTemplate.from_line(raw, line, step.values, unread_digits())
        if template is None:
            return False
        self._by_length.setdefault(template.length, []).append(template)
        self._count += 1
        return True


def lines_of(block: bytes, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets (int64) of the begins and the ends of the lines that contain `positions` (int64, ascending)."""
    if len(positions) * BYTES_PER_SEARCH > len(block):
        ends = line_ends(block)
        numbers = np.searchsorted(ends, positions)
        numbers = numbers[np.flatnonzero(np.diff(numbers, prepend=-1))]
        return np.where(numbers > 0, ends[numbers - 1] + 1, 0), ends[numbers]
    begins: list[int] = []
    ends_of_lines: list[int] = []
    end = -1
    for position in positions.tolist():
        if position > end:
            end = block.find(b"\n", position)
            end = len(block) if end < 0 else end
            begins.append(block.rfind(b"\n", 0, position) + 1)
            ends_of_lines.append(end)
    return np.array(begins, np.int64), np.array(ends_of_lines, np.int64)


def line_ends(block: bytes) -> np.ndarray:
    """Return the offsets (int64) of the line ends in a block."""
    ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n"))
    return ends if block.endswith(b"\n") else np.append(ends, len(block))
