"""Step lines of one layout in one block, as columns or as records."""

import dataclasses
from itertools import repeat

import numpy as np

from lt_monitor.events import VERSION, Record
from lt_monitor.layouts import Layout


@dataclasses.dataclass(frozen=True)
class StepRows:
    """`offsets` (int64, ascending) are where the lines begin in the log, `cells` (uint8) their bytes, one line a row."""

    layout: Layout
    offsets: np.ndarray
    cells: np.ndarray

    def columns(self) -> dict[str, np.ndarray]:
        """The values by field (float64); those of metrics under their own names. Without the time."""
        return {column.measure.field: column.read(self.cells) for column in self.layout.columns if not column.measure.is_time}

    def times(self) -> list[str] | None:
        texts = self.layout.times(self.cells)
        return None if texts is None else [text.decode("ascii") for text in texts.tolist()]

    def records(self, path: str, run: str) -> list[Record]:
        """The same records that reading each line alone gives."""
        names = ["v", "kind", "run"]
        values: list[object] = [repeat(VERSION), repeat("step"), repeat(run)]
        metrics: dict[str, list[float]] = {}
        for column in self.layout.columns:
            measure = column.measure
            if measure.is_time:
                names.append(measure.field)
                values.append(self.times())
                continue
            numbers = column.read(self.cells)
            listed = numbers.astype(np.int64).tolist() if measure.whole else numbers.tolist()
            if measure.is_metric:
                if not metrics:
                    names.append("metrics")
                    values.append(metrics)
                metrics[measure.field] = listed
            else:
                names.append(measure.field)
                values.append(listed)
        if metrics:
            rows = zip(*metrics.values(), strict=True)
            values[values.index(metrics)] = [dict(zip(metrics, row, strict=True)) for row in rows]
        if self.layout.node is not None:
            names.append("node")
            values.append(repeat(self.layout.node))
        names.append("src")
        values.append([{"file": path, "offset": offset} for offset in self.offsets.tolist()])
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=False)]
