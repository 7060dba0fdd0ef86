"""Remove labels from a block of lines, one kind at a time. The labels are parsed only for lines that have events.

For a block without labels, only SAMPLES of its lines are examined, and fewer for a small block after many blocks without labels:
a pipe delivers 64 KiB at a time, and examining 64 lines per 64 KiB takes a third of the processor time. Otherwise one
substitution removes a kind of label from the whole block. Labels that `lines.Line` reads itself stay, unless other labels
surround them.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lt_monitor.events.records import Record
from lt_monitor.logs.fast.excerpts import Excerpt, LineSelection
from lt_monitor.logs.fields import read_time
from lt_monitor.logs.labels import columns, envelopes, margins, prefixes

SAMPLES = 16
SAMPLE_LINES = 4
SAMPLE_BYTES = 1 << 12
# After so many bytes without labels, one sample per 128 KiB is examined, but at least two.
BARE_BYTES = 1 << 20
BARE_BYTES_PER_SAMPLE = 1 << 17
# If no label was recognised by its shape for long, shapes are examined once in so many bytes, and in small blocks.
BARE_BYTES_PER_SHAPE = 1 << 24
SMALL_BYTES = 1 << 14
MINIMUM_SAMPLES = 2
MAXIMUM_LAYERS = 6
# The labels of smaller blocks are removed from all lines.
EXCERPT_BYTES = 1 << 16

# Colours that lost their escape byte, as in logs that somebody copied from a terminal or a web page.
# `re` finds a pattern that begins with a letter of its own twelve times as fast as one that begins by looking back.
_LOST_COLOUR = re.compile(rb"\[(?<!\x1b\[)(?:\d{1,3};){0,7}\d{1,3}m")
_COLOURED = re.compile(_LOST_COLOUR.pattern + rb"\S[^\n]{0,2000}(?<!\x1b)\[(?:0|39|22)m")
# CRI's marks of lines that were cut into parts.
_CUTS = (b" stdout P ", b" stderr P ")
_PART = re.compile(rb"\n[^\n]{0,200}? std(?:out|err) P ")


class Layer:
    """One removed kind of label. `lines` maps a line of the text to its line of the block; `read` parses a line's label."""

    def __init__(
        self,
        block: bytes,
        text: bytes,
        lines: np.ndarray | None,
        read: Callable[[bytes], Record],
        names_nobody: bool = False,
    ):
        self.text = text
        self._block = block
        self._lines = lines
        self._read = read
        self._names_nobody = names_nobody
        self._block_begins: np.ndarray | None = None
        self._text_begins: np.ndarray | None = None

    def origins(self, positions: np.ndarray, with_times: bool) -> tuple[np.ndarray, list[Record]]:
        """Map positions (int64) in the text to the beginnings of their lines in the block (int64), and parse the labels."""
        if self._block_begins is None or self._text_begins is None:
            self._block_begins, self._text_begins = _line_begins(self._block), _line_begins(self.text)
        lines = np.searchsorted(self._text_begins, positions, side="right") - 1
        lines = lines if self._lines is None else self._lines[np.minimum(lines, len(self._lines) - 1)]
        lines = np.minimum(lines, len(self._block_begins) - 1)
        if self._names_nobody and not with_times:
            return self._block_begins[lines], [{}] * len(lines)
        begins, ends = self._block_begins[lines], np.append(self._block_begins, len(self._block) + 1)[lines + 1] - 1
        spans = zip(begins.tolist(), ends.tolist(), strict=True)
        return begins, [self._read(self._block[begin:end]) for begin, end in spans]


class UnlabelledBlock:
    """The `text` of a block without its labels, or of an `excerpt` of the block without its `outer` layers."""

    def __init__(self, layers: list[Layer], excerpt: Excerpt | None = None, outer: Sequence[Layer] = ()):
        self.text = layers[-1].text if layers else excerpt.text if excerpt is not None else b""
        self.excerpt = excerpt
        self._layers: list[Layer | Excerpt] = [*outer, excerpt, *layers] if excerpt is not None else [*layers]

    def origins(self, positions: np.ndarray, with_times: bool = True) -> tuple[np.ndarray, list[Record]]:
        """Map positions (int64) in the text to the beginnings of their lines in the block (int64), and parse all labels.

        If `with_times` is False, the time may be missing, which is faster.
        """
        records: list[Record] = [{} for _ in range(len(positions))]
        for layer in reversed(self._layers):
            if isinstance(layer, Excerpt):
                positions = layer.origins(positions)
                continue
            positions, outer = layer.origins(positions, with_times)
            records = [labels | inner if labels else inner for labels, inner in zip(outer, records, strict=True)]
        return positions, list(map(_with_checked_time, records)) if with_times else records


def _with_checked_time(record: Record) -> Record:
    if "time" not in record:
        return record
    time = read_time(record["time"].encode(errors="replace"))
    return {field: value for field, value in {**record, "time": time}.items() if value is not None}


class Label(NamedTuple):
    """A kind of label: `remove` takes it from a text and returns None if the text has none.

    `is_escaped`: the lines stand in JSON or in quotes. `is_anywhere`: the label is not only in front of a line.
    """

    remove: Callable[[bytes], Layer | None]
    is_escaped: bool = False
    is_anywhere: bool = False


class LabelRemoval:
    """Removes labels from the blocks of one log. `state` is an earlier instance's `to_record()`, to continue that instance."""

    def __init__(self, state: Record | None = None):
        state = state or {}
        # By layer: the kind of column label of this log, and its names.
        self._columns: dict[str, list[str]] = state.get("columns", {})
        self._bare_bytes = 0
        # By layer: the bytes since a label was last recognised by its shape, and how many they are at the next examination.
        self._shapeless_bytes: dict[int, int] = {}
        self._next_shapes: dict[int, int] = {}

    def to_record(self) -> Record:
        return {"columns": self._columns}

    def remove(self, block: bytes, selection: LineSelection | None = None) -> UnlabelledBlock | None:
        """Remove the labels of a block whose lines end in newlines; return None if it has no labels.

        With a `selection`, the text may hold only the lines that it selects.
        """
        unlabelled = self._remove(block, selection)
        self._bare_bytes = 0 if unlabelled is not None else self._bare_bytes + len(block)
        return unlabelled

    def _remove(self, block: bytes, selection: LineSelection | None) -> UnlabelledBlock | None:
        layers: list[Layer] = []
        text = block
        while len(layers) < MAXIMUM_LAYERS and (label := self._recognise(runs := self._samples(text), len(layers), text)):
            if not label.is_anywhere and selection is not None and len(block) >= EXCERPT_BYTES:
                excerpt = self._remove_from_excerpt(text, runs, label, selection, layers)
                if excerpt is not None:
                    return excerpt
                selection = None
            if (layer := label.remove(text)) is None:
                break
            layers.append(layer)
            text = layer.text
        return UnlabelledBlock(layers) if layers else None

    def _remove_from_excerpt(
        self, block: bytes, runs: list[list[bytes]], label: Label, selection: LineSelection, outer: list[Layer]
    ) -> UnlabelledBlock | None:
        """Remove the labels of the selected lines alone; return None if the whole block is needed.

        The labels behind the first are recognised in the samples of the block, `runs`. `outer` labels are removed already.
        """
        columns_before = {depth: list(names) for depth, names in self._columns.items()}
        labels = [label]
        while len(labels) + len(outer) < MAXIMUM_LAYERS:
            inner = [_lines_without(labels[-1], run) for run in runs]
            if inner == runs or (label_behind := self._recognise(inner, len(labels) + len(outer), block)) is None:
                break
            labels.append(label_behind)
            runs = inner
        is_whole = any(label.is_anywhere for label in labels) or any(cut in block for cut in _CUTS)
        excerpt = None if is_whole else selection.excerpt(block, any(label.is_escaped for label in labels))
        if excerpt is None:
            self._columns = columns_before
            return None
        layers = []
        text = excerpt.text
        for label in labels:
            layer = label.remove(text)
            if layer is not None:
                layers.append(layer)
                text = layer.text
        return UnlabelledBlock(layers, excerpt, outer)

    def _samples(self, block: bytes) -> list[list[bytes]]:
        is_bare = not self._columns and self._bare_bytes > BARE_BYTES
        return _samples(block, max(MINIMUM_SAMPLES, min(SAMPLES, len(block) // BARE_BYTES_PER_SAMPLE)) if is_bare else SAMPLES)

    def _recognise(self, runs: list[list[bytes]], depth: int, block: bytes) -> Label | None:
        """Return the outermost label of the lines in `runs`, which are samples of a block without its `depth` outer labels."""
        lines = [line for run in runs for line in run]
        if any(b"[0m" in line and _COLOURED.search(line) is not None for line in lines):
            colours = frozenset(itertools.chain.from_iterable(map(_LOST_COLOUR.findall, lines)))
            return Label(functools.partial(_without_lost_colours, frequent=colours), is_anywhere=True)
        if any(line[:1] == b"{" and envelopes.is_envelope(line) for line in lines):
            return Label(_without_envelopes, is_escaped=True)
        if any(envelopes.quoted_text(line) is not None for line in lines):
            return Label(_without_quotes, is_escaped=True)
        ends = list(map(prefixes.chain_end, lines))
        kinds = frozenset[int]().union(*(prefixes.kinds(line) for line, end in zip(lines, ends, strict=True) if end))
        holds_envelopes = (end and envelopes.is_envelope(line[end:]) for line, end in zip(lines, ends, strict=True))
        if any(map(prefixes.is_foreign, kinds)) or (kinds and any(holds_envelopes)):
            spellings = prefixes.spellings(line[:end] for line, end in zip(lines, ends, strict=True))
            return Label(functools.partial(_without_prefixes, kinds=kinds, spellings=spellings))
        return self._column(runs, ends, depth, kinds, block) or self._margin(lines, ends, depth, len(block))

    def _column(
        self, runs: list[list[bytes]], label_ends: list[int], depth: int, native: frozenset[int], block: bytes
    ) -> Label | None:
        """Recognise a column label. In the lines of `runs`, the native labels (of the kinds `native`) end at `label_ends`."""
        lines = [line for run in runs for line in run]
        stored_column = self._columns.get(str(depth))
        kind = columns.recognise(lines, runs) if stored_column is None else stored_column[0]
        if kind is None and native and stored_column is None:
            # Native labels with a column label behind them must be removed first.
            ends = iter(label_ends)
            inner = [[line[next(ends) :] for line in run] for run in runs]
            if columns.recognise([line for run in inner for line in run], inner) is not None:
                return Label(functools.partial(_without_prefixes, kinds=native))
        if kind is None:
            return None
        return Label(functools.partial(self._without_column, kind=kind, depth=depth, samples=lines, block=block))

    def _without_column(self, text: bytes, kind: str, depth: int, samples: list[bytes], block: bytes) -> Layer | None:
        """Remove a column label from a text, and remember its names. The text is a part of `block`, without outer labels."""
        names = {name.encode() for name in self._columns.get(str(depth), [kind])[1:]}
        if not columns.COLUMNS[kind].is_numbered:
            names |= columns.names_in(text, kind, block)
        if not names and not columns.COLUMNS[kind].is_numbered:
            return None
        if len(samples) >= columns.MINIMUM_LINES:
            self._columns[str(depth)] = [kind, *sorted(name.decode(errors="replace") for name in names)][: columns.MAXIMUM_NAMES]
        unlabelled = columns.lines_with(kind, frozenset(names)).sub(b"\n", b"\n" + text)[1:]
        return None if unlabelled == text else Layer(text, unlabelled, None, lambda line: columns.read(kind, line))

    def _margin(self, lines: list[bytes], label_ends: list[int], depth: int, size: int) -> Label | None:
        """Recognise a label by its shape alone. In `lines`, the labels that `Line` reads itself end at `label_ends`."""
        shapeless_bytes = self._shapeless_bytes.get(depth, 0)
        self._shapeless_bytes[depth] = shapeless_bytes + size
        if size > SMALL_BYTES and BARE_BYTES < shapeless_bytes < self._next_shapes.get(depth, 0):
            return None
        self._next_shapes[depth] = shapeless_bytes + BARE_BYTES_PER_SHAPE
        margin = margins.recognise(lines)
        # The formats read lines behind one label in brackets as they are.
        if margin is None or (margin.kinds == ("bracket",) and any(line[:1] == b"[" for line in lines)):
            return None
        pattern = margin.pattern()
        matches = ((pattern.match(b"\n" + line), end) for line, end in zip(lines, label_ends, strict=True))
        if all(match is None or match.end() - 1 <= end for match, end in matches):
            return None
        self._shapeless_bytes[depth] = 0
        return Label(functools.partial(_without_margin, margin=margin, pattern=pattern))


def _lines_without(label: Label, lines: list[bytes]) -> list[bytes]:
    """Remove a label from some consecutive lines."""
    layer = label.remove(b"\n".join([*lines, b""]))
    return lines if layer is None else layer.text.removesuffix(b"\n").split(b"\n")


def _without_lost_colours(text: bytes, frequent: Iterable[bytes]) -> Layer:
    unlabelled = text
    if b"\x1b" not in text:
        # Four times as fast as the pattern.
        for colour in frequent:
            unlabelled = unlabelled.replace(colour, b"")
    return Layer(text, _LOST_COLOUR.sub(b"", unlabelled), None, lambda _: {}, names_nobody=True)


def _without_margin(text: bytes, margin: margins.Margin, pattern: re.Pattern[bytes]) -> Layer | None:
    unlabelled = pattern.sub(b"\n", b"\n" + text)[1:]
    return None if unlabelled == text else Layer(text, unlabelled, None, margin.read, margin.names_nobody())


def _without_prefixes(block: bytes, kinds: frozenset[int], spellings: tuple[bytes, ...] = ()) -> Layer:
    framed = b"\n" + block
    read = functools.partial(prefixes.read_chain, kinds=kinds)
    if any(cut in block for cut in _CUTS) and _PART.search(framed) is not None:
        return _without_parts(block, read)
    text = prefixes.lines_with(kinds, spellings).sub(b"\n", framed)[1:]
    return Layer(block, text, None, read, prefixes.names_nobody(kinds))


def _without_parts(block: bytes, read: Callable[[bytes], Record]) -> Layer:
    """Join lines that the container runtime cut into parts; all parts but the last are marked P."""
    texts: list[bytes] = []
    numbers: list[int] = []
    is_open = False
    for number, line in enumerate(block.split(b"\n")):
        end = prefixes.chain_end(line)
        if is_open:
            texts[-1] += line[end:]
        else:
            texts.append(line[end:])
            numbers.append(number)
        is_open = _PART.match(b"\n" + line[:end]) is not None
    return Layer(block, b"\n".join(texts), np.array(numbers), read)


def _without_envelopes(block: bytes) -> Layer:
    lines = block.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    values = envelopes.parse_all(lines)
    whole = envelopes.whole_lines(values)
    if whole is not None:
        return Layer(block, whole, None, _read_envelope, envelopes.read(values[0]).keys() <= {"time"})
    texts: list[bytes] = []
    numbers: list[int] = []
    is_open = False
    for number, (line, envelope) in enumerate(zip(lines, values, strict=True)):
        text = envelopes.text(envelope)
        is_part = text is not None and envelopes.is_part(envelope, text)
        text = line if text is None else text.removesuffix(b"\n").replace(b"\r", b"\n")
        if is_open and texts:
            texts[-1] += text
        else:
            texts.append(text)
            numbers += [number] * (text.count(b"\n") + 1)
        is_open = is_part
    return Layer(block, b"\n".join(texts) + b"\n", np.array(numbers), _read_envelope)


def _without_quotes(block: bytes) -> Layer:
    """Take the texts out of quotes: logfmt, and fluent-bit's and fluentd's own output."""
    texts = []
    numbers: list[int] = []
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
        quoted = envelopes.quoted_text(line)
        text = line if quoted is None else quoted.removesuffix(b"\n")
        texts.append(text)
        numbers += [number] * (text.count(b"\n") + 1)
    return Layer(block, b"\n".join(texts) + b"\n", np.array(numbers), envelopes.read_quoted)


def _read_envelope(line: bytes) -> Record:
    envelope: Any = envelopes.parse(line)
    return envelopes.read(envelope) if envelopes.text_key(envelope) is not None else {}


def _samples(block: bytes, samples: int) -> list[list[bytes]]:
    """Return runs of consecutive lines from the whole block, without newlines and with long lines cut."""
    if len(block) <= SAMPLES * SAMPLE_BYTES and block.count(b"\n") < SAMPLES * SAMPLE_LINES:
        lines = block.split(b"\n")
        return [lines[:-1] if not lines[-1] else lines]
    runs = []
    for number in range(samples):
        begin = len(block) * number // samples
        part = block[begin : begin + SAMPLE_BYTES]
        lines = part.split(b"\n", SAMPLE_LINES + 1)
        runs.append(lines[(1 if number else 0) : SAMPLE_LINES + 1][: None if len(lines) > SAMPLE_LINES + 1 else -1])
    return [run for run in runs if run]


def _line_begins(text: bytes) -> np.ndarray:
    ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
    return np.concatenate(([0], ends + 1))
