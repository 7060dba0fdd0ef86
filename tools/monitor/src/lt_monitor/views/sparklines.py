"""The curves of a run as lines of text, for a terminal over ssh.

llama3-8b  step 17,420 of 20,000
loss          12.72 █▅▄▃▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁ 1.859
grad norm     4.273 █▅▃▂▁▁▁▁▂▁▁▁▁▁▁▁▁▁▁▁ 0.43
                           R X    R  X
"""

import shutil
from collections.abc import Sequence

from lt_monitor.events.escaping import printable
from lt_monitor.runs import curves
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.curves import Series
from lt_monitor.runs.metrics import LOSS, Metric
from lt_monitor.views.annotations import annotations_of
from lt_monitor.views.summary_table import loss_text
from lt_monitor.views.tick_labels import compact

# Later ones cover earlier ones in the line of annotations.
SIGNS = {"restart": ("R", "restart"), "nan": ("N", "loss not a number"), "fault": ("X", "fault")}
TITLE_WIDTH = 12
LABEL_WIDTH = 20
MAXIMUM_WIDTH = 100


def of_run(run: Run, name: str, metric_curves: Sequence[tuple[Metric, Series]], width: int | None = None) -> str:
    """A heading, a line for each curve that the run has, and one that marks what happened. `width` is in characters."""
    steps = run.steps
    if not len(steps):
        return f"{printable(name)}  no step yet"
    first, last = int(steps.numbers[0]), int(steps.numbers[-1])
    wide = min(width or shutil.get_terminal_size().columns, MAXIMUM_WIDTH) - LABEL_WIDTH - 10
    cells = min(max(10, wide), len(steps))
    total = steps.last("total_steps")
    lines = [f"{printable(name)}  step {last:,}" + (f" of {int(total):,}" if total else "")]
    lines += [_row(metric, curve, first, last, cells) for metric, curve in metric_curves if len(curve[0])]
    return "\n".join(lines + _annotations(run, first, last, cells))


def _row(metric: Metric, curve: Series, first: int, last: int, cells: int) -> str:
    line = curves.sparkline(curve, first, last, cells)
    last_value = loss_text(float(curve[1][-1])) if metric is LOSS else compact(curve[1][-1])
    return f"{printable(metric.short, TITLE_WIDTH):<{TITLE_WIDTH}}{compact(curve[1][0]):>7} {line} {last_value}"


def _annotations(run: Run, first: int, last: int, cells: int) -> list[str]:
    annotations = annotations_of(run)
    if not annotations:
        return []
    line = [" "] * cells
    for kind, (sign, _) in SIGNS.items():
        for annotation in annotations:
            if annotation.kind == kind and first <= annotation.step <= last:
                line[min((annotation.step - first) * cells // max(1, last - first + 1), cells - 1)] = sign
    kinds = {annotation.kind for annotation in annotations}
    present = [f"{sign} {meaning}" for kind, (sign, meaning) in SIGNS.items() if kind in kinds]
    return [" " * LABEL_WIDTH + "".join(line).rstrip(), " " * LABEL_WIDTH + "  ".join(present)]
