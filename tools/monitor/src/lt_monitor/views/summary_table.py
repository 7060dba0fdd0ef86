"""Summaries for people: one column a run, a rich table on a terminal and plain aligned text elsewhere."""

import datetime
import sys
from collections.abc import Callable
from typing import Any

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import Record
from lt_monitor.runs.faults.failure_causes import ranks_text
from lt_monitor.runs.summary import Summary
from lt_shared.console import counted
from lt_shared.contracts.run_log import GIB

COLUMNS = 4
NAME_CHARACTERS = 60
SCORES = "scores"
# Rows that are there when a run of the table has such.
OF_SEVERAL: dict[str, Callable[[Summary], Any]] = {
    "phase": lambda summary: summary.phase,
    "loss by source": lambda summary: summary.source_losses,
    "validation sets": lambda summary: summary.validation_losses,
    "saving": lambda summary: summary.checkpoints,
    "recovery": lambda summary: summary.recoveries,
    "nodes": lambda summary: summary.nodes,
    "starting": lambda summary: summary.starting,
}

Cell = Callable[[Summary], str]


def print_table(summaries: list[Summary]) -> None:
    """Print all summaries, COLUMNS runs beside each other."""
    groups = [summaries[start : start + COLUMNS] for start in range(0, len(summaries), COLUMNS)]
    if sys.stdout.isatty():
        from rich.console import Console

        for group in groups:
            Console().print(_rich_table(group))
    else:
        print("\n\n".join(_plain_table(group) for group in groups))


def _rich_table(group: list[Summary]) -> object:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("run", style="bold")
    for summary in group:
        table.add_column(Text(printable(summary.run)), overflow="fold")
    for title, cell in _rows(group).items():
        table.add_row(title, *[Text(cell(summary)) for summary in group])
    return table


def _plain_table(group: list[Summary]) -> str:
    rows = [["run", *[printable(summary.run) for summary in group]]]
    rows += [[title, *[cell(summary) for summary in group]] for title, cell in _rows(group).items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(group) + 1)]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _rows(group: list[Summary]) -> dict[str, Cell]:
    """ROWS, and below the validation losses the scores where some were given."""
    titles = [title for title in ROWS if title not in OF_SEVERAL or any(OF_SEVERAL[title](summary) for summary in group)]
    if any(summary.scores for summary in group):
        titles.insert(titles.index("validation") + 1, SCORES)
    return {title: ROWS.get(title, _scores) for title in titles}


def _step(summary: Summary) -> str:
    if summary.step is None:
        return "-"
    if summary.done_share is None:
        return f"{summary.step:,}"
    return f"{summary.step:,} / {summary.total_steps:,} ({summary.done_share:.1%})"


def loss_text(loss: float | None) -> str:
    """Format a loss. All views have the same digits, so that one loss is one number."""
    return "-" if loss is None else f"{loss:.4f}"


def starting_text(summary: Summary, now: float | None = None) -> str:
    """Format since when a run starts, and what it does: `3 min 2 s: loading a checkpoint`."""
    if summary.starting is None:
        return "-"
    since, activity = summary.starting["since"], printable(summary.starting["activity"] or "nothing logged yet", 200)
    if since is None:
        return activity
    moment = datetime.datetime.now().astimezone().timestamp() if now is None else now
    return f"{duration(max(0.0, moment - datetime.datetime.fromisoformat(since).timestamp()))}: {activity}"


def _trend(summary: Summary) -> str:
    if summary.loss_mean is None or summary.loss_change is None:
        return "-"
    return f"mean {loss_text(summary.loss_mean)}, before {loss_text(summary.loss_mean - summary.loss_change)}"


def _validation(summary: Summary) -> str:
    if summary.best_validation_loss is None:
        return "-"
    return f"{summary.validation_loss:.4f}, best {summary.best_validation_loss:.4f} at step {summary.best_validation_step:,}"


def _losses(losses: dict[str, float]) -> str:
    return ", ".join(f"{printable(name, NAME_CHARACTERS)} {loss:.4f}" for name, loss in losses.items()) or "-"


def _scores(summary: Summary) -> str:
    steps = {one["step"] for one in summary.scores.values()}
    at_step = f" at step {steps.pop():,}" if len(steps) == 1 else ""
    shown = (
        f"{printable(name, NAME_CHARACTERS)} {one['value']:.4g}" + ("" if at_step else f" at step {one['step']:,}")
        for name, one in summary.scores.items()
    )
    return ", ".join(shown) + at_step or "-"


def _speed(summary: Summary) -> str:
    parts = []
    if summary.tokens_per_second is not None:
        parts.append(f"{summary.tokens_per_second:,.0f} tokens/s")
    elif summary.tokens_per_second_per_gpu is not None:
        parts.append(f"{summary.tokens_per_second_per_gpu:,.0f} tokens/s per GPU")
    if summary.step_seconds is not None:
        parts.append(f"{summary.step_seconds:,.3g} s/step")
    return ", ".join(parts) or "-"


def _tflops(summary: Summary) -> str:
    return "-" if summary.tflops_per_gpu is None else f"{summary.tflops_per_gpu:,.4g}"


def _mfu(summary: Summary) -> str:
    return "-" if summary.mfu is None else f"{summary.mfu:.1%}"


def _memory(summary: Summary) -> str:
    return "-" if summary.memory_bytes is None else f"{summary.memory_bytes / GIB:.2f} GiB"


def _tokens(summary: Summary) -> str:
    return "-" if summary.consumed_tokens is None else f"{summary.consumed_tokens:,}"


def _eta(summary: Summary) -> str:
    if summary.eta_seconds is None:
        return "-"
    return "done" if summary.eta_seconds == 0 else duration(summary.eta_seconds)


def duration(seconds: float) -> str:
    """Two units are enough: `3 d 4 h`, `12 min 5 s`."""
    remaining = round(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, remaining = divmod(remaining, length)
        if count or (unit == "s" and not parts):
            parts.append(f"{count:,} {unit}")
    return " ".join(parts[:2])


def _restarts(summary: Summary) -> str:
    return f"{summary.restarts:,}" + (f", {counted(summary.lost_steps, 'step')} repeated" if summary.lost_steps else "")


def _checkpoint(summary: Summary) -> str:
    if summary.checkpoint_step is None:
        return "-"
    return f"step {summary.checkpoint_step:,}" + (f" in {printable(summary.checkpoint_path)}" if summary.checkpoint_path else "")


def _saving(summary: Summary) -> str:
    shown = (
        f"{mean['count']:,} {store}, stall {mean['stall_seconds']:.3g} s of {mean['write_seconds']:.3g} s"
        for store, mean in summary.checkpoints.items()
    )
    return "; ".join(shown) or "-"


def _nodes(summary: Summary) -> str:
    return "{nodes} of {all_nodes} since step {step}".format(**summary.nodes) if summary.nodes else "-"


def _recovery(summary: Summary) -> str:
    if summary.recovery_seconds is None:
        return "-"
    return f"{duration(summary.recovery_seconds)} a failure, {summary.recoveries:,} so far"


def _fault(summary: Summary) -> str:
    if summary.fault is None:
        return "-"
    return describe_fault(summary.fault) + (f", {summary.faults - 1:,} more" if summary.faults > 1 else "")


def describe_fault(fault: Record) -> str:
    """Describe a fault by kind, place and attempt: `out-of-memory on rank 3 in attempt 2`."""
    number = f" {fault['xid']}" if "xid" in fault else ""
    if "suspect_ranks" in fault:
        return f"{printable(fault['fault'])}, first suspect {ranks_text(fault['suspect_ranks'])}, in attempt {fault['attempt']}"
    place = f" on rank {fault['rank']}" if "rank" in fault else f" on {printable(fault['node'])}" if "node" in fault else ""
    return f"{printable(fault['fault'])}{number}{place} in attempt {fault['attempt']}"


def _ended(summary: Summary) -> str:
    return "-" if summary.ended_text is None else printable(summary.ended_text)


def _updated(summary: Summary) -> str:
    if summary.updated is None:
        return "-"
    age_seconds = (datetime.datetime.now().astimezone() - datetime.datetime.fromisoformat(summary.updated)).total_seconds()
    return f"{summary.updated} ({duration(age_seconds)} ago)" if age_seconds >= 0 else summary.updated


ROWS: dict[str, Cell] = {
    "step": _step,
    "phase": lambda summary: printable(summary.phase, NAME_CHARACTERS) if summary.phase else "-",
    "starting": starting_text,
    "loss": lambda summary: loss_text(summary.loss),
    "last tenth": _trend,
    "loss by source": lambda summary: _losses(summary.source_losses),
    "validation": _validation,
    "validation sets": lambda summary: _losses(summary.validation_losses),
    "speed": _speed,
    "TFLOP/s per GPU": _tflops,
    "MFU": _mfu,
    "memory": _memory,
    "tokens": _tokens,
    "time left": _eta,
    "restarts": _restarts,
    "checkpoint": _checkpoint,
    "saving": _saving,
    "recovery": _recovery,
    "nodes": _nodes,
    "skipped steps": lambda summary: f"{summary.skipped_steps:,}",
    "nan steps": lambda summary: f"{summary.nan_steps:,}",
    "fault": _fault,
    "ended": _ended,
    "updated": _updated,
}
