"""`lt-monitor runs`: many runs in one table, a row each, with the arguments that make them different."""

import sys
from collections.abc import Sequence

from lt_monitor.events.escaping import printable
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.summary import Summary
from lt_monitor.views.summary_table import ROWS, loss_text, starting_text

VALUE_CHARACTERS = 24
MAXIMUM_ARGUMENTS = 6
# They differ between any two runs and say nothing about them.
NEVER_SHOWN = ("save", "load")


def columns(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    """Return the cells by column. A column without any value is omitted."""
    cells_by_title = {
        "step": ["" if one.step is None else f"{one.step:,}" for one in summaries],
        "done": [_share(one) for one in summaries],
        "starting": [starting_text(one).removeprefix("-") for one in summaries],
        "loss": [_loss(one.loss) for one in summaries],
        "mean": [_loss(one.loss_mean) for one in summaries],
        "validation": [_number(one.validation_loss, ".4f") for one in summaries],
        "best": [_number(one.best_validation_loss, ".4f") for one in summaries],
        "tokens/s": [_number(one.tokens_per_second, ",.0f") for one in summaries],
        "tokens/s/GPU": [_per_gpu(one) for one in summaries],
        "MFU": [_number(one.mfu, ".1%") for one in summaries],
        "left": [ROWS["time left"](one).replace("-", "") for one in summaries],
        "restarts": [str(one.restarts or "") for one in summaries],
        "fault": [_fault(one) for one in summaries],
        "ended": [printable(one.ended_text or "") for one in summaries],
    }
    return {title: cells for title, cells in cells_by_title.items() if any(cells)}


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The arguments that differ between runs, with each run's value; "" if a log does not show it."""
    arguments = [run.arguments for run in runs]
    names = dict.fromkeys(name for one in arguments for name in one if name not in NEVER_SHOWN)
    values = {name: [one.get(name) for one in arguments] for name in names}
    return {
        printable(name): ["" if value is None else printable(value, VALUE_CHARACTERS) for value in of_runs]
        for name, of_runs in values.items()
        if len(runs) > 1 and len({str(value) for value in of_runs if value is not None}) > 1
    }


def print_table(runs: Sequence[Run], names: Sequence[str], summaries: Sequence[Summary]) -> None:
    """A rich table on a terminal, aligned text elsewhere."""
    different = differences(runs)
    shown_arguments = dict(list(different.items())[:MAXIMUM_ARGUMENTS])
    table = {"run": [printable(name) for name in names]} | columns(summaries) | shown_arguments
    _print(table)
    if len(different) > MAXIMUM_ARGUMENTS:
        unshown = ", ".join(list(different)[MAXIMUM_ARGUMENTS:])
        print(f"\nThey differ in these arguments too (--json has their values): {unshown}")


def _print(table: dict[str, list[str]]) -> None:
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        shown = Table(box=box.SIMPLE_HEAD)
        for title in table:
            shown.add_column(Text(title), style="bold" if title == "run" else "", overflow="fold")
        for cells in zip(*table.values(), strict=True):
            shown.add_row(*[Text(cell) for cell in cells])
        Console().print(shown)
        return
    widths = [max(map(len, [title, *cells])) for title, cells in table.items()]
    for line in [list(table), *zip(*table.values(), strict=True)]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _share(summary: Summary) -> str:
    return "" if summary.done_share is None else f"{summary.done_share:.0%}"


def _loss(value: float | None) -> str:
    return "" if value is None else loss_text(value)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _per_gpu(summary: Summary) -> str:
    """Speed per GPU, only if the number of GPUs is unknown, and so the total speed."""
    return _number(summary.tokens_per_second_per_gpu, ",.0f") if summary.tokens_per_second is None else ""


def _fault(summary: Summary) -> str:
    return "" if summary.fault is None else printable(summary.fault["fault"])
