"""The screens of `watch`: all runs and all nodes' GPUs, or one run."""

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lt_monitor.events.escaping import printable
from lt_monitor.events.records import Record
from lt_monitor.runs.attempts import Attempt
from lt_monitor.runs.summary import Summary
from lt_monitor.views import report_tables, sparklines, summary_table
from lt_monitor.views.live.view import Node, View
from lt_monitor.views.tick_labels import compact
from lt_shared.console import counted
from lt_shared.contracts.run_log import GIB

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text

PANEL_LINES = 9
# Those of a table around its rows.
TABLE_LINES = 5
SPARK_WIDTH = 10
COLUMN_GAP = 3
NAME_WIDTH = 10
# Columns that a narrow terminal omits, in this order.
DISPENSABLE = ("restarts", "tokens/s", "fault", "left", "last line", "step", "loss")
# The share of the screen that nodes may take.
NODES_SHARE = 1 / 3
OLD_SAMPLE_SECONDS = 900
_TITLES = ("Attempts, the newest first", "Faults, the newest first")
LEVELS = " ▁▂▃▄▅▆▇█"


@dataclasses.dataclass(frozen=True)
class Choice:
    """The user's choice: the name of a run or None, and whether its page is open, scrolled to its line `first_line`.

    `has_keys`: the terminal can read keys.
    """

    name: str | None = None
    is_open: bool = False
    has_keys: bool = False
    first_line: int = 0


@dataclasses.dataclass(frozen=True)
class Extent:
    """How many lines the page below the panel has, or how many runs there are, and how many fit the screen."""

    lines: int = 0
    visible_lines: int = 10


ONE_SCREEN = Extent()


def render(
    views: Sequence[View],
    now: float,
    width: int,
    height: int,
    trouble: str | None = None,
    nodes: Sequence[Node] = (),
    choice: Choice | None = None,
) -> "RenderableType":
    """The screen at the time `now`: a panel for each run, or a table where `height` lines have no room for them; the GPUs.

    `trouble` says why the logs cannot be read; without a run, what is waited for.
    """
    from rich.console import Group
    from rich.text import Text

    choice = choice or Choice()
    views = [view.at(now) for view in views]
    chosen = next((view for view in views if view.name == choice.name), None)
    parts: list[RenderableType] = []
    if trouble is not None and not views:
        parts.append(Text(f" {trouble}", style="cyan"))
        trouble = None
    if chosen is not None and choice.is_open:
        parts += _page(chosen, now, width, height - 1, choice.first_line)
    else:
        gpus = _nodes(nodes, now, max(3, int(height * NODES_SHARE)))
        room = height - 1 - len(gpus)
        if len(views) * PANEL_LINES <= room:
            parts += [_panel(view, now, view is chosen) for view in views]
        else:
            parts.append(_table(views, now, width, max(1, room - TABLE_LINES), chosen))
        parts += gpus
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    footer, style = (_keys(choice), "dim") if trouble is None else (trouble, "red")
    parts.append(Text(f" {clock}  {footer}", style=style, no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _keys(choice: Choice) -> str:
    if not choice.has_keys:
        return "Ctrl-C ends"
    return "↑↓ PgUp PgDn scroll  Esc all runs  ←→ other runs  q quits" if choice.is_open else "↑↓ choose  Enter opens  q quits"


def _panel(view: View, now: float, is_chosen: bool = False) -> "RenderableType":
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    summary = view.summary
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(style="dim", width=11)
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    rows = summary_table.ROWS
    share = min(1.0, summary.done_share or 0.0)
    time_left = rows["time left"](summary)
    progress = _join(rows["step"](summary), {"-": "", "done": "done"}.get(time_left, f"{time_left} left"))
    grid.add_row("step", ProgressBar(total=1.0, completed=share), progress)
    grid.add_row("loss", _Spark(view, "loss", "cyan"), _loss(summary))
    grid.add_row("speed", _Spark(view, "rate", "green"), _join(rows["speed"](summary), _percent(summary)))
    validation, checkpoint = rows["validation"](summary), rows["checkpoint"](summary)
    grid.add_row("validation", Text(validation), Text(f"checkpoint {checkpoint}", overflow="ellipsis"))
    grid.add_row("restarts", Text(rows["restarts"](summary)), _age(view, now, "last line {} ago"))
    parts: list[RenderableType] = [grid]
    if summary.starting is not None:
        text = f"starting, {summary_table.starting_text(summary, now)}"
        parts.append(Text(text, style="cyan", no_wrap=True, overflow="ellipsis"))
    if summary.fault is not None:
        message = f"{rows['fault'](summary)}: {printable(summary.fault['message'])}"
        parts.append(Text(message, style="red", no_wrap=True, overflow="ellipsis"))
    style = "red" if summary.silent else "blue"
    title = Text(view.name, style="bold reverse" if is_chosen else "bold")
    return Panel(Group(*parts), title=title, title_align="left", box=box.HEAVY if is_chosen else box.ROUNDED, border_style=style)


def _table(views: Sequence[View], now: float, width: int, rows: int, chosen: View | None) -> "RenderableType":
    """At most `rows` runs, the chosen one among them."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    first = max(0, min(len(views) - rows, views.index(chosen) - rows // 2 if chosen is not None else 0))
    hidden = len(views) - rows
    views = views[first : first + rows]
    columns: dict[str, list[Text]] = {
        "step": [Text("-" if view.summary.step is None else f"{view.summary.step:,}") for view in views],
        "loss": [Text(summary_table.loss_text(view.summary.loss)) for view in views],
        "tokens/s": [Text(_rate(view.summary)) for view in views],
        "left": [Text(summary_table.ROWS["time left"](view.summary)) for view in views],
        "last line": [_age(view, now, "{}") for view in views],
        "restarts": [Text(str(view.summary.restarts)) for view in views],
        "fault": [Text(printable((view.summary.fault or {}).get("fault", "")), style="red") for view in views],
    }
    widths = {title: max(len(title), *(len(cell) for cell in cells)) for title, cells in columns.items()}
    longest = max(len(view.name) for view in views)
    for title in DISPENSABLE:
        if sum(widths.values()) + COLUMN_GAP * (len(widths) + 1) + min(longest, NAME_WIDTH) > width:
            del widths[title], columns[title]
    spare = width - sum(widths.values()) - COLUMN_GAP * (len(widths) + 2)
    names = min(longest, max(NAME_WIDTH, spare - SPARK_WIDTH))
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("run", no_wrap=True, overflow="ellipsis", width=names, style="bold")
    for title, wide in widths.items():
        table.add_column(title, no_wrap=True, width=wide)
    has_room = spare - names >= SPARK_WIDTH
    if has_room:
        table.add_column("loss", no_wrap=True, width=min(spare - names, 4 * SPARK_WIDTH))
    for view, *cells in zip(views, *columns.values(), strict=True):
        style = "reverse" if view is chosen else ""
        table.add_row(Text(view.name), *cells, *([_Spark(view, "loss", "cyan")] if has_room else []), style=style)
    if hidden > 0:
        table.caption = f"{first + 1}-{first + len(views)} of {hidden + rows}"
        table.caption_justify = "left"
    return table


def _rate(summary: Summary) -> str:
    return "-" if summary.tokens_per_second is None else f"{summary.tokens_per_second:,.0f}"


class _Spark:
    """A sparkline as wide as its table cell."""

    def __init__(self, view: View, metric: str, style: str):
        self.view = view
        self.metric = metric
        self.style = style

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        yield Text(self.view.spark(self.metric, options.max_width), style=self.style, no_wrap=True)


def _age(view: View, now: float, form: str) -> "Text":
    from rich.text import Text

    if view.summary.ended_text is not None:
        return Text(f"ended: {printable(view.summary.ended_text)}", style="yellow")
    if view.summary.starting is not None and view.summary.starting["since"] is not None and not view.summary.silent:
        return Text(f"starting for {summary_table.starting_text(view.summary, now).partition(':')[0]}", style="cyan")
    seconds = view.silence.seconds(now)
    if seconds is None:
        return Text("-")
    return Text(form.format(summary_table.duration(seconds)), style="bold red" if view.summary.silent else "green")


def _loss(summary: Summary) -> str:
    mean = "" if summary.loss_mean is None else f" mean {summary_table.loss_text(summary.loss_mean)}"
    change = "" if summary.loss_change is None else f" ({summary.loss_change:+.4f})"
    return summary_table.loss_text(summary.loss) + mean + change


def _percent(summary: Summary) -> str:
    return "" if summary.mfu is None else f"MFU {summary.mfu:.1%}"


def _join(*texts: str) -> str:
    return ", ".join(text for text in texts if text)


def screen_of(views: Sequence[View], choice: Choice, width: int, height: int) -> Extent:
    """Return what scrolling keys go by: the lines of the open page, or else the runs."""
    chosen = next((view for view in views if view.name == choice.name), None)
    if chosen is None or not choice.is_open:
        return Extent(len(views), max(1, height - 1 - TABLE_LINES))
    return Extent(len(_page_lines(chosen, width)), max(1, height - 1 - _panel_lines(chosen) - 1))


def _panel_lines(view: View) -> int:
    return PANEL_LINES + (view.summary.starting is not None) - (view.summary.fault is None)


def _page(view: View, now: float, width: int, height: int, first_line: int) -> "list[RenderableType]":
    """One run in `height` lines: figures, and below them the page's lines from `first_line` on."""
    from rich.text import Text

    lines = _page_lines(view, width)
    room = max(0, height - _panel_lines(view))
    if len(lines) > room > 1:
        first = min(first_line, len(lines) - room + 1)
        last = first + room - 1
        footer = f"lines {first + 1}-{last} of {len(lines)}"
    else:
        first, last, footer = 0, room, ""
    shown = [Text(line, style="bold" if line in _TITLES else "", no_wrap=True, overflow="ellipsis") for line in lines[first:last]]
    return [_panel(view, now, True), *shown, *([Text(footer, style="dim")] if footer else [])]


def _page_lines(view: View, width: int) -> list[str]:
    """The curves, then all attempts and faults, the newest first."""
    key = ("page", width)
    if key not in view.lines:
        lines = sparklines.of_run(view.run, view.name, view.curves, width).splitlines()[1:]
        attempts = [_attempt(attempt) for attempt in reversed(view.run.attempts)]
        faults = [
            _join_columns(str(attempt.number), *_fault_cells(fault))
            for attempt in reversed(view.run.attempts)
            for fault in reversed(attempt.of_kind("fault"))
            if fault["severity"] != "info"
        ]
        for title, listed in zip(_TITLES, (attempts, faults), strict=True):
            lines += ["", title, *listed] if listed else []
        view.lines[key] = "\n".join(lines)
    return view.lines[key].split("\n") if view.lines[key] else []


def _attempt(attempt: Attempt) -> str:
    """One line: `2  2026-11-18 06:39:20  25 min 4 s  152 to 312  node-failure`."""
    began, lasted, steps, end = report_tables.attempt_cells(attempt)
    return _join_columns(str(attempt.number), began, lasted, steps, end)


def _join_columns(*texts: str) -> str:
    return "  ".join(text for text in texts if text)


def _fault_cells(fault: Record) -> tuple[str, str, str]:
    when = printable(fault.get("time") or "")[:19].replace("T", " ")
    return when, printable(fault["fault"]), printable(fault["message"])


def _nodes(nodes: Sequence[Node], now: float, most: int) -> "list[RenderableType]":
    """A line for each node: how busy each GPU is, and the sums that tell whether something is wrong."""
    from rich.text import Text

    shown = nodes[: most - 1] if len(nodes) > most else nodes
    wide = max((len(node.name) for node in shown), default=0)
    lines: list[RenderableType] = [_node(node, now, min(wide, 20)) for node in shown]
    if len(nodes) > len(shown):
        lines.append(Text(f" {len(nodes) - len(shown):,} more nodes", style="dim"))
    return lines


def _node(node: Node, now: float, wide: int) -> "Text":
    from rich.text import Text

    busy = node.values("utilization")
    parts = [counted(len(node.gpus), "GPU")]
    line = Text(f" {printable(node.name, max(1, wide)):<{wide}}  ", no_wrap=True, overflow="ellipsis")
    line.append("".join(LEVELS[round(min(1.0, max(0.0, share)) * (len(LEVELS) - 1))] for share in busy), style="green")
    if busy:
        parts.append(f"{sum(busy) / len(busy):.0%} busy")
    used, total = node.values("memory_bytes"), node.values("memory_total_bytes")
    if used:
        parts.append(f"{max(used) / GIB:.0f}" + (f" of {max(total) / GIB:.0f}" if total else "") + " GiB")
    if node.values("temperature_celsius"):
        parts.append(f"{max(node.values('temperature_celsius')):.0f} °C")
    if node.values("power_watts"):
        parts.append(f"{compact(sum(node.values('power_watts')))} W")
    line.append("  " + ", ".join(parts))
    if node.slowdowns:
        line.append(f", {node.slowdowns} slowed down", style="bold red")
    errors = sum(node.values("ecc_uncorrected_errors"))
    if errors:
        line.append(f", {counted(int(errors), 'memory error')}", style="bold red")
    if node.sampled is not None and now - node.sampled > OLD_SAMPLE_SECONDS:
        line.append(f", {summary_table.duration(now - node.sampled)} ago", style="red")
    return line
