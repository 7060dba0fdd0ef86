"""Step lines that were read by columns: the rows of a line template, and the rows of a whole block.

JSON output needs no Python object per line: orjson encodes a whole column, and the texts are inserted into one JSON template. A
line takes 2 microseconds; building and encoding a dict takes 6.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from lt_monitor.events.records import VERSION, Record
from lt_monitor.events.steps import Steps, epoch_seconds
from lt_monitor.logs.fast.line_templates import LineTemplate
from lt_monitor.logs.fields import RANK, TASK

Stream = tuple[object, ...]
UNNAMED: Stream = (None, None, None)


@dataclasses.dataclass(frozen=True)
class StepRows:
    """A template's lines. `offsets` (int64, ascending) are their positions in the log, `cells` (uint8) one line per row.

    `labels` holds the task, rank and node from the labels before the lines; `label_times` (bytes) holds the labels' times.
    """

    template: LineTemplate
    offsets: np.ndarray
    cells: np.ndarray
    labels: Record = dataclasses.field(default_factory=dict)
    label_times: np.ndarray | None = None

    def relabelled(self, offsets: np.ndarray, labels: Sequence[Record]) -> "list[StepRows]":
        """Move the rows to `offsets` in the log and add the lines' labels; return one part per (task, rank, node).

        Lines whose label has a time and lines without one are separate parts. A value in the line itself takes precedence over
        the label.
        """
        fields = {column.field.name for column in self.template.columns} | ({"node"} if self.template.node is not None else set())
        names = [name for name in ("task", "rank", "node") if name not in fields]
        can_have_time = "time" not in fields
        keys = [(can_have_time and "time" in label, *[label.get(name) for name in names]) for label in labels]
        times = np.array([label.get("time", "").encode() for label in labels]) if can_have_time else None
        parts = []
        for key in dict.fromkeys(keys):
            chosen: Any = slice(None) if keys.count(key) == len(keys) else np.array([other == key for other in keys])
            constants = {name: value for name, value in zip(names, key[1:], strict=True) if value is not None}
            part_times = times[chosen] if times is not None and key[0] else None
            parts.append(StepRows(self.template, offsets[chosen], self.cells[chosen], constants, part_times))
        return parts

    @property
    def node(self) -> str | None:
        return self.template.node if self.template.node is not None else self.labels.get("node")

    @cached_property
    def values(self) -> list[np.ndarray]:
        """The values by column: int64 for counts, ISO 8601 text (bytes) for the time, float64 for other numbers."""
        return [self.template.values(column, self.cells) for column in self.template.columns]

    def steps(self) -> Steps:
        """Return the rows as columns by field name; metrics keep their own names."""
        columns = {
            column.field.name: values.astype(np.float64, copy=False)
            for column, values in zip(self.template.columns, self.values, strict=True)
            if not column.field.is_time
        }
        return Steps(columns.pop("step").astype(np.int64), columns, self._epoch_seconds())

    def _epoch_seconds(self) -> np.ndarray:
        if self.label_times is None:
            return self.template.epoch_seconds(self.cells)
        return np.array([epoch_seconds(time.decode()) for time in self.label_times.tolist()])

    def records(self, path: str, run: str) -> list[Record]:
        """Return the same records as the trainer's parser makes line by line."""
        rows = zip(*[self._listed(values) for values in self.values], strict=True)
        fields = [(column.field.name, column.field.is_metric) for column in self.template.columns]
        records: list[Record] = []
        for offset, row in zip(self.offsets.tolist(), rows, strict=True):
            record: Record = {"v": VERSION, "kind": "step", "run": run}
            for (field, is_metric), value in zip(fields, row, strict=True):
                (record.setdefault("metrics", {}) if is_metric else record)[field] = value
            if self.template.node is not None:
                record["node"] = self.template.node
            record |= self.labels
            if self.label_times is not None:
                record["time"] = self.label_times[len(records)].decode()
            record["src"] = {"file": path, "offset": offset}
            records.append(record)
        return records

    @staticmethod
    def _listed(values: np.ndarray) -> list[object]:
        if values.dtype.kind == "S":
            return [text.decode("ascii") for text in values.tolist()]
        if values.dtype.kind == "f" and np.isinf(values).any():
            return [None if math.isinf(value) else value for value in values.tolist()]
        return list(values.tolist())

    def lines(self, path: str, run: str) -> list[bytes]:
        """Encode the records as JSON, byte for byte as orjson encodes the dicts."""
        texts = []
        for values in self.values:
            if values.dtype.kind == "S":
                texts.append(values.tolist())
            else:
                texts.append(orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b","))
        if self.label_times is not None:
            texts.append(self.label_times.tolist())
        texts.append(orjson.dumps(self.offsets, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b","))
        return list(map(self._json_template(path, run).__mod__, zip(*texts, strict=True)))

    def _json_template(self, path: str, run: str) -> bytes:
        placeholders = [_Placeholder() for _ in self.values]
        record: Record = {"v": VERSION, "kind": "step", "run": run}
        for column, placeholder in zip(self.template.columns, placeholders, strict=True):
            field = column.field
            (record.setdefault("metrics", {}) if field.is_metric else record)[field.name] = placeholder
        if self.template.node is not None:
            record["node"] = self.template.node
        record |= self.labels
        if self.label_times is not None:
            record["time"] = _Placeholder()
        record["src"] = {"file": path, "offset": _Placeholder()}
        encoded = orjson.dumps(record, default=lambda placeholder: _PLACEHOLDER)
        template = encoded.replace(b"%", b"%%").replace(b'"' + _PLACEHOLDER.encode() + b'"', b"%b")
        time = next((column.field.name.encode() for column in self.template.columns if column.field.is_time), None)
        time = b"time" if self.label_times is not None else time
        return template if time is None else template.replace(b'"%b":%%b' % time, b'"%b":"%%b"' % time)


_PLACEHOLDER = "\ue000 value \ue000"


class _Placeholder:
    """The place of a value in a JSON template."""


@dataclasses.dataclass(frozen=True)
class StepBlock:
    """All step rows of a block in the order of the log. Steps may go back and repeat.

    `stream_of` (int64) maps a row to the index of its task, rank and node in `streams`; None if no row has any.
    """

    rows: list[StepRows]
    offsets: np.ndarray
    order: np.ndarray | None
    streams: list[Stream]
    stream_of: np.ndarray | None

    @classmethod
    def from_rows(cls, rows: list[StepRows]) -> "StepBlock":
        offsets = np.concatenate([part.offsets for part in rows])
        # A template's rows are already in order. NumPy's stable sort is fast on sorted runs.
        order = np.argsort(offsets, kind="stable") if len(rows) > 1 else None
        streams, stream_of = _streams(rows)
        if order is None:
            return cls(rows, offsets, order, streams, stream_of)
        return cls(rows, offsets[order], order, streams, None if stream_of is None else stream_of[order])

    @cached_property
    def steps(self) -> Steps:
        steps = Steps.concatenate([part.steps() for part in self.rows])
        for field in ("task", "rank"):
            steps.columns.pop(field, None)
        return steps if self.order is None else steps[self.order]

    @cached_property
    def numbers(self) -> list[float]:
        return list(self.column("step").tolist())

    @cached_property
    def losses(self) -> list[float | None]:
        """The loss by row; None if the line has no loss or the loss is not finite."""
        return [loss if math.isfinite(loss) else None for loss in self.column("loss").tolist()]

    def column(self, field: str) -> np.ndarray:
        """Return the field's values (float64); NaN if a line does not have the field."""
        parts = []
        for part in self.rows:
            indexes = (index for index, column in enumerate(part.template.columns) if column.field.name == field)
            index = next(indexes, None)
            constant = float(part.labels.get(field, math.nan)) if field in ("task", "rank") else math.nan
            parts.append(np.full(len(part.offsets), constant) if index is None else part.values[index].astype(np.float64))
        values = np.concatenate(parts)
        return values if self.order is None else values[self.order]

    def lines(self, path: str, run: str) -> list[bytes]:
        lines = [line for part in self.rows for line in part.lines(path, run)]
        return lines if self.order is None else [lines[index] for index in self.order.tolist()]


def _streams(rows: list[StepRows]) -> tuple[list[Stream], np.ndarray | None]:
    nodes = list(dict.fromkeys(part.node for part in rows))
    has_numbers = any(part.labels or any(column.field in (TASK, RANK) for column in part.template.columns) for part in rows)
    if nodes == [None] and not has_numbers:
        return [UNNAMED], None
    block = StepBlock(rows, np.empty(0), None, [], None)
    node_of = np.concatenate([np.full(len(part.offsets), float(nodes.index(part.node))) for part in rows])
    table = np.stack([block.column("task"), block.column("rank"), node_of], axis=1)
    table = np.nan_to_num(table, nan=-1.0)
    if (table == table[0]).all():
        unique, stream_of = table[:1], np.zeros(len(table), dtype=np.int64)
    else:
        unique, stream_of = np.unique(table, axis=0, return_inverse=True)
    labels = [(None if number < 0 else int(number) for number in row[:2]) for row in unique.tolist()]
    streams: list[Stream] = [(*pair, nodes[int(row[2])]) for pair, row in zip(labels, unique.tolist(), strict=True)]
    return streams, stream_of.reshape(-1)
