"""The parts of the report that are plain HTML: figures, attempts, faults. All text from logs is escaped here."""

import datetime
from collections.abc import Sequence
from html import escape

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import Record
from lt_monitor.runs.attempts import Attempt, Run
from lt_monitor.runs.faults.endings import Ending, ending_faults, ending_of
from lt_monitor.runs.metrics import MAXIMUM_SCORES
from lt_monitor.runs.summary import Summary
from lt_monitor.views import runs_table as run_comparison
from lt_monitor.views import summary_table
from lt_monitor.views.annotations import fault_step
from lt_shared.console import counted
from lt_shared.contracts.run_log import GIB

FAULT_ROWS = 100
OPEN_ARGUMENTS = 12
MESSAGE_CHARACTERS = 300

SHORT_CELLS = ("Attempt", "Began", "Lasted", "Steps", "Repeated", "Cause", "Step", "When", "MFU", "Left")
SHORT = ' class="short"'

Cell = tuple[str, str]


def header(title: str, summary: Summary) -> str:
    parts = [f"Step {summary_table.ROWS['step'](summary).replace('/', 'of')}"] if summary.step is not None else []
    if summary.starting is not None:
        parts.append(f"starting, {summary_table.starting_text(summary)}")
    if summary.eta_seconds:
        parts.append(f"{summary_table.duration(summary.eta_seconds)} left")
    if summary.ended_text:
        parts.append(f"ended: {printable(summary.ended_text)}")
    if summary.updated:
        parts.append(("silent since " if summary.silent else "last line ") + summary.updated[:16].replace("T", " "))
    bar = ""
    if summary.done_share is not None:
        share = min(1.0, summary.done_share)
        bar = (
            '<div class="progress"><svg viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="progress">'
            f'<rect class="track" width="100" height="8"/><rect class="bar" width="{share * 100:.2f}" height="8"/></svg></div>'
        )
    return f'<header><h1>{escape(title)}</h1><div class="muted">{escape(" · ".join(parts))}</div>{bar}</header>'


def main_fault(summary: Summary) -> str:
    """What went wrong in one box, above everything else."""
    if summary.fault is None:
        return ""
    cause = "Root cause" if summary.fault["cause"] == "root" else "Fault"
    message = escape(printable(summary.fault["message"], MESSAGE_CHARACTERS))
    return (
        f'<section class="card alarm"><h2><span class="badge root">{cause}</span> '
        f"{escape(summary_table.describe_fault(summary.fault))}</h2><code>{message}</code></section>"
    )


def tiles(summary: Summary) -> str:
    """Return tiles with a run's figures."""
    cells = [
        _tile("Loss", summary_table.loss_text(summary.loss), _loss_note(summary)),
        _tile("Validation loss", summary_table.loss_text(summary.validation_loss), _validation_note(summary)),
        *(_score_tile(name, one) for name, one in list(summary.scores.items())[:MAXIMUM_SCORES]),
        _speed_tile(summary),
        _tile("MFU", _number(summary.mfu, ".1%"), _gpu_note(summary)),
        _tile("Tokens seen", _compact(summary.consumed_tokens), _tokens_note(summary)),
        _tile(
            "Restarts", f"{summary.restarts:,}", f"{counted(summary.lost_steps, 'step')} repeated" if summary.lost_steps else ""
        ),
        _tile("Last checkpoint", _number(summary.checkpoint_step, ",d"), _path_note(summary)),
        _tile("Faults", f"{summary.faults:,}", "without consequences of others" if summary.faults else ""),
    ]
    return f'<dl class="tiles card">{"".join(cells)}</dl>'


def _score_tile(name: str, newest: dict[str, float]) -> str:
    return _tile(escape(printable(name, MESSAGE_CHARACTERS)), f"{newest['value']:.4g}", f"at step {newest['step']:,}")


def _speed_tile(summary: Summary) -> str:
    note = "" if summary.step_seconds is None else f"{summary.step_seconds:,.4g} s a step"
    if summary.tokens_per_second is None and summary.tokens_per_second_per_gpu is not None:
        return _tile("Tokens per second and GPU", f"{summary.tokens_per_second_per_gpu:,.0f}", note)
    return _tile("Tokens per second", _number(summary.tokens_per_second, ",.0f"), note)


def _tile(title: str, value: str, note: str) -> str:
    extra = f'<span class="note">{escape(note)}</span>' if note else ""
    return f'<div class="tile"><dt>{title}</dt><dd>{escape(value)}{extra}</dd></div>'


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _compact(count: int | None) -> str:
    if count is None:
        return "-"
    for size, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if count >= size:
            return f"{count / size:.3g} {suffix}"
    return f"{count:,}"


def _loss_note(summary: Summary) -> str:
    odd = [f"{count:,} {what}" for count, what in ((summary.nan_steps, "NaN"), (summary.skipped_steps, "skipped")) if count]
    trend = [] if summary.loss_mean is None else [f"mean of the last tenth {summary_table.loss_text(summary.loss_mean)}"]
    trend += [] if summary.loss_change is None else [f"{summary.loss_change:+.4f} since the tenth before"]
    return ", ".join(trend + odd)


def _validation_note(summary: Summary) -> str:
    if summary.best_validation_loss is None:
        return ""
    return f"best {summary_table.loss_text(summary.best_validation_loss)} at step {summary.best_validation_step:,}"


def _gpu_note(summary: Summary) -> str:
    tflops = [] if summary.tflops_per_gpu is None else [f"{summary.tflops_per_gpu:,.4g} TFLOP/s"]
    memory = [] if summary.memory_bytes is None else [f"{summary.memory_bytes / GIB:.1f} GiB"]
    return " and ".join(tflops + memory) + (" per GPU" if tflops or memory else "")


def _tokens_note(summary: Summary) -> str:
    if summary.consumed_tokens is None or not summary.done_share:
        return ""
    return f"of {_compact(round(summary.consumed_tokens * max(1.0, 1 / summary.done_share)))}"


def _path_note(summary: Summary) -> str:
    return "" if summary.checkpoint_path is None else printable(summary.checkpoint_path, 120)


def comparison(runs: Sequence[Run], names: Sequence[str], summaries: Sequence[Summary]) -> str:
    """A row for each of several runs, and a row for each argument that differs."""
    safe = [escape(printable(name)) for name in names]
    cells = {title[0].upper() + title[1:]: texts for title, texts in run_comparison.columns(summaries).items()}
    rows = []
    for index, name in enumerate(safe):
        row = [(title, escape(texts[index])) for title, texts in cells.items()]
        rows.append([("Run", f'<i class="swatch run c{index % 8}"></i><b>{name}</b>'), *row])
    page = f'<section class="card"><h2>Runs</h2>{table(rows)}</section>'
    differences = run_comparison.differences(runs)
    if differences:
        arguments = []
        for argument, values in differences.items():
            row = list(zip(safe, map(escape, values), strict=True))
            arguments.append([("Argument", f"<b>{escape(argument)}</b>"), *row])
        shown = " open" if len(arguments) <= OPEN_ARGUMENTS else ""
        title = f"<summary><h2>Arguments that differ ({len(arguments):,})</h2></summary>"
        page += f'<section class="card"><details{shown}>{title}{table(arguments)}</details></section>'
    return page


def toggles(names: Sequence[str]) -> str:
    """A button for each of several runs, which hides and shows its curves."""
    if len(names) == 1:
        return ""
    buttons = "".join(
        f'<button type="button" data-run="{index}" aria-pressed="true"><i class="swatch run c{index % 8}"></i>'
        f"{escape(printable(name))}</button>"
        for index, name in enumerate(names)
    )
    return f'<div class="runs">{buttons}</div>'


def legend(runs: Sequence[Run], references: bool) -> str:
    """The legend of the markers in the curves, without absent markers."""
    entries = [
        (True, '<path class="raw" d="M0,8l4,-5l4,7l4,-6l6,3"/>', "as logged"),
        (True, '<path class="smooth" d="M0,9q8,-7 18,-4"/>', "smoothed"),
        (any(run.evaluations for run in runs), '<circle class="valid" cx="9" cy="6" r="3.6"/>', "validation"),
        (any(run.checkpoints for run in runs), '<path class="checkpoint-mark" d="M5,10h8l-4,-7z"/>', "checkpoint"),
        (
            any(run.restarts for run in runs),
            '<circle class="restart-mark" cx="9" cy="6" r="4.6"/>',
            "restart, shaded: repeated steps",
        ),
        (any(run.of_kind("fault") for run in runs), '<path class="fault-mark" d="M9,0l6,6l-6,6l-6,-6z"/>', "fault"),
        (True, '<path class="beyond" d="M4.500,9h9l-4.500,-6z"/>', "beyond the panel"),
        (references, '<path class="reference" d="M0,6h18"/>', "reference"),
    ]
    shown = "".join(
        f'<span><svg class="c0" viewBox="0 0 18 12" aria-hidden="true">{drawing}</svg>{text}</span>'
        for present, drawing, text in entries
        if present
    )
    return f'<div class="legend">{shown}</div>'


def attempts(runs: Sequence[Run], names: Sequence[str]) -> str:
    """The lives of the runs' jobs; nothing when no run was ever restarted or failed."""
    if not any(run.restarts or ending_faults(run.attempts[-1]) for run in runs):
        return ""
    rows = []
    for run, name in zip(runs, names, strict=True):
        for attempt in run.attempts:
            row = [("Run", escape(printable(name)))] if len(runs) > 1 else []
            began, lasted, steps, end = attempt_cells(attempt)
            row += [("Attempt", str(attempt.number)), ("Began", began), ("Lasted", lasted), ("Steps", steps)]
            rows.append([*row, ("Repeated", f"{attempt.lost_steps:,}" if attempt.lost_steps else ""), ("End", escape(end))])
    return f'<section class="card"><h2>Attempts</h2>{table(rows)}</section>'


def attempt_cells(attempt: Attempt) -> tuple[str, str, str, str]:
    """When it began, how long it lasted, its steps, and how it ended, safe for a terminal."""
    return _time(attempt.begin_time), _lasted(attempt), _steps(attempt), _end(attempt)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else datetime.datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def _lasted(attempt: Attempt) -> str:
    if attempt.begin_time is None or attempt.end_time is None:
        return ""
    return summary_table.duration(attempt.end_time - attempt.begin_time)


def _steps(attempt: Attempt) -> str:
    if attempt.first_step is None:
        return "none"
    return f"{attempt.first_step:,} to {attempt.last_step:,}"


def _end(attempt: Attempt) -> str:
    ending = ending_of(attempt)
    return "not logged" if ending is None else printable(ending.text)


def faults(runs: Sequence[Run], names: Sequence[str]) -> str:
    """The faults, root causes first in each attempt, equal ones counted."""
    rows: list[list[Cell]] = []
    left_out = 0
    for run, name in zip(runs, names, strict=True):
        for attempt in run.attempts:
            ending = ending_of(attempt)
            for group in _grouped(attempt.of_kind("fault"), None if ending is None else ending.fault):
                if len(rows) < FAULT_ROWS:
                    row = [("Run", escape(printable(name)))] if len(runs) > 1 else []
                    rows.append(row + _fault_row(group, attempt, ending))
                else:
                    left_out += 1
    if not rows:
        return ""
    more = f'<p class="muted">And {left_out:,} more.</p>' if left_out else ""
    return f'<section class="card"><h2>Faults</h2>{table(rows)}{more}</section>'


def _grouped(faults: Sequence[Record], ended_by: Record | None) -> list[list[Record]]:
    """Group faults by kind and cause: what ended the attempt first, then root causes, cascades last, in the order of the log."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for fault in faults:
        groups.setdefault(tuple(fault.get(field) for field in ("fault", "cause", "severity", "xid")), []).append(fault)
    order = {"root": 0, "unknown": 1, "cascade": 2}
    return sorted(groups.values(), key=lambda group: (not _is_among(ended_by, group), order[group[0]["cause"]]))


def _is_among(ended_by: Record | None, group: Sequence[Record]) -> bool:
    return any(fault is ended_by for fault in group)


def _fault_row(group: Sequence[Record], attempt: Attempt, ending: Ending | None) -> list[Cell]:
    """A consequence "follows" only a fault of its own attempt: otherwise it counts as the cause."""
    is_end = ending is not None and _is_among(ending.fault, group)
    first = ending.fault if is_end and ending is not None and ending.fault is not None else group[0]
    has_cause = any(fault["cause"] != "cascade" for fault in attempt.of_kind("fault"))
    follows = first["cause"] == "cascade" and not is_end and (has_cause or (ending is not None and ending.fault is not None))
    name = "root cause" if first["cause"] == "root" else "follows" if follows else "ended it" if is_end else "fault"
    kind = "other" if follows else "root" if is_end or first["severity"] == "critical" else "warning"
    badge = f'<span class="badge {kind}">{"warning" if kind == "warning" else name}</span>'
    step = fault_step(first, attempt)
    ranks = list(dict.fromkeys(f"rank {fault['rank']}" for fault in group if fault.get("rank") is not None))
    nodes = list(dict.fromkeys(printable(fault["node"], 60) for fault in group if fault.get("node") is not None))
    place = ", ".join((ranks + nodes)[:4]) + (" …" if len(ranks + nodes) > 4 else "")
    times = f" &times;{len(group):,}" if len(group) > 1 else ""
    when = "" if first.get("time") is None else printable(first["time"][:19]).replace("T", " ")
    return [
        ("Cause", badge),
        ("Fault", f"<b>{escape(_fault_name(first))}</b>{times}"),
        ("Attempt", f"{attempt.number}"),
        ("Step", "" if step is None else f"{step:,}"),
        ("When", escape(when)),
        ("Where", escape(place)),
        ("Line", f"<code>{escape(printable(first['message'], MESSAGE_CHARACTERS))}</code>"),
    ]


def _fault_name(fault: Record) -> str:
    return printable(fault["fault"]) + (f" {fault['xid']}" if "xid" in fault else "")


def table(rows: Sequence[Sequence[Cell]]) -> str:
    """Rows of (title, HTML), both escaped. On a narrow screen each row becomes a list of titles and values."""
    head = "".join(f"<th>{title}</th>" for title, _ in rows[0])
    cells = (
        "".join(f'<td data-label="{title}"{SHORT if title in SHORT_CELLS else ""}>{cell}</td>' for title, cell in row)
        for row in rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
