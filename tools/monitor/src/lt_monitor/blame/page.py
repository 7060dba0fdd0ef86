"""What blame has found as a part of the run's HTML report. All text from the run and from its data is escaped here."""

from collections.abc import Sequence
from html import escape

from lt_monitor.blame import text
from lt_monitor.blame.rollback import Rollback
from lt_monitor.blame.suspects import Blame, BlamedSample, DocumentPart
from lt_monitor.events.escaping import printable
from lt_monitor.runs import run_loader
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import html_report, plot, report_tables
from lt_monitor.views.plot_options import PlotOptions

EXCERPT_CHARACTERS = 240


def build(run: str, blames: Sequence[Blame], rollback: Rollback, origin_of_losses: str) -> str:
    """The report of the run with a section for each of `found`. Raises as `run_loader.read`."""
    runs = run_loader.join_by_checkpoints(run_loader.read([run]))
    sections = [_section(blame, origin_of_losses) for blame in blames]
    names = plot.short_names([one_run.name for one_run in runs])
    return html_report.build(runs, names, RunFacts(), PlotOptions(), sections=[*sections, _rollback(rollback)])


def _section(one: Blame, origin_of_losses: str) -> str:
    shown = [sample for sample in one.samples if sample.documents is not None]
    rows = [row for sample in shown for row in _rows(sample)]
    headline = escape(text.headline(one, origin_of_losses))
    hidden = len(one.samples) - len(shown)
    more = f'<p class="muted">And {hidden:,} more samples.</p>' if hidden else ""
    table = report_tables.table(rows) if rows else ""
    return f'<section class="card"><h2>Text behind {escape(str(one.steps))}</h2><p>{headline}</p>{table}{more}</section>'


def _rows(sample: BlamedSample) -> list[list[report_tables.Cell]]:
    rows = []
    for index, part in enumerate(sample.documents or ()):
        is_first = index == 0
        badge = '<span class="badge root">stands out</span>' if is_first and sample.is_suspect and sample.loss is not None else ""
        rows.append(
            [
                ("Loss", f"{sample.loss:.4f} {badge}" if is_first and sample.loss is not None else ""),
                ("Sample", f"{sample.sample:,}" if is_first else ""),
                ("Step", f"{sample.step:,}" if is_first else ""),
                ("Source", escape(text.source_and_tokens(part))),
                ("Text", _text(part)),
            ]
        )
    return rows


def _text(part: DocumentPart) -> str:
    excerpt = part.text if part.text is not None else f"({part.problem})" if part.problem else ""
    return f"<code>{escape(printable(excerpt, EXCERPT_CHARACTERS))}</code>"


def _rollback(rollback: Rollback) -> str:
    if not rollback.samples:
        return ""
    since = printable(rollback.checkpoint) if rollback.checkpoint else "the beginning"
    command = f"<code>{escape(printable(rollback.command, 10_000))}</code>" if rollback.command else ""
    named = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in rollback.samples)
    return (
        f'<section class="card"><h2>To go on without it</h2><p>From {escape(since)}, without samples {escape(printable(named))}:'
        f"</p>{command}</section>"
    )
