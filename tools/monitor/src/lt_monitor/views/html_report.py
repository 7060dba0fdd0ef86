"""`lt-monitor plot -o FILE.html`: a report in one file, to be opened from a disk, mailed, or read on a phone.

Figures and tables are plain HTML; an inline script draws the curves as SVG. The page loads nothing. Text from logs is escaped
where it enters the page, and the page's content security policy allows only the script with the right hash, so even an
unescaped name could not run. A curve has at most RAW_POINTS points, the extremes of each stretch: the page of a run with a
million steps takes 200 kB and still shows every spike.
"""

import base64
import datetime
import hashlib
import importlib.resources
import json
import string
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from lt_monitor.events.escaping import printable
from lt_monitor.runs import metrics
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.curves import EARLY_SHARE, LOSS_WINDOW_SHARE, WINDOW_SHARE, Series, envelope, finite, smoothed, thinned
from lt_monitor.runs.metrics import Metric
from lt_monitor.runs.speed import RunFacts
from lt_monitor.runs.summary import Summary, summarize
from lt_monitor.views import report_tables
from lt_monitor.views.annotations import annotations_of
from lt_monitor.views.plot_options import PlotOptions
from lt_shared import version_of

RAW_POINTS = 3000
SMOOTH_POINTS = 1000
MAXIMUM_MARKERS = 400
TIMES = 300

Panel = dict[str, Any]


def build(
    runs: Sequence[Run],
    names: Sequence[str],
    run_facts: RunFacts,
    options: PlotOptions,
    now: float | None = None,
    sections: Sequence[str] = (),
) -> str:
    """The page about `runs`, shown under `names`, at the time `now`, else at present. A run may have no step yet.

    `sections` are more of its parts, in HTML.

    Raises UsageError for a metric that no run has.
    """
    summaries = [summarize(run, run_facts, now) for run in runs]
    has_steps = any(len(run.steps) for run in runs)
    metric_curves = metrics.curves_of(runs, run_facts, options.metrics) if has_steps else []
    shown = [_run_data(run, printable(name)) for run, name in zip(runs, names, strict=True)]
    for number, (metric, curves) in enumerate(metric_curves):
        for data, curve in zip(shown, curves, strict=True):
            if len(curve[0]):
                data["curves"][_key(metric, number)] = _curve(curve, metric, options)
    panels = _panels([metric for metric, _ in metric_curves], any(data["annotations"] for data in shown))
    resources = importlib.resources.files("lt_monitor.views") / "report_page"
    style, script, page = ((resources / name).read_text(encoding="utf-8") for name in ("style.css", "charts.js", "page.html"))
    bounds = [(int(run.steps.numbers[0]), int(run.steps.numbers[-1])) for run in runs if len(run.steps)]
    page_data = {
        "steps": [min((begin for begin, _ in bounds), default=0), max((end for _, end in bounds), default=0)],
        "early": EARLY_SHARE,
        "panels": panels,
        "runs": shown,
        "references": [[printable(name), value] for name, value in options.references],
    }
    title = printable(names[0]) if len(runs) == 1 else f"{len(runs)} training runs"
    return string.Template(page).substitute(
        title=escape(title),
        style=style,
        script=script,
        style_hash=_csp_hash(style),
        script_hash=_csp_hash(script),
        data=_script_json(page_data),
        body=_body(title, runs, names, summaries, panels, bool(options.references), sections),
    )


def _body(
    title: str,
    runs: Sequence[Run],
    names: Sequence[str],
    summaries: Sequence[Summary],
    panels: Sequence[Panel],
    references: bool,
    sections: Sequence[str],
) -> str:
    now = datetime.datetime.now().astimezone().isoformat(" ", "minutes")
    if len(runs) == 1:
        head = (
            report_tables.header(title, summaries[0]) + report_tables.main_fault(summaries[0]) + report_tables.tiles(summaries[0])
        )
    else:
        head = f"<header><h1>{escape(title)}</h1></header>" + report_tables.comparison(runs, names, summaries)
    files = ", ".join(printable(file, 200) for file in dict.fromkeys(file for run in runs for file in run.files))
    return "\n".join(
        [
            head,
            _charts(panels, report_tables.toggles(names), report_tables.legend(runs, references)) if panels else "",
            *sections,
            report_tables.attempts(runs, names),
            report_tables.faults(runs, names),
            f"<footer>Read from {escape(files[:2000])}. Made by lt-monitor {version_of('lt-monitor')} on {escape(now)}.</footer>",
        ]
    )


def _charts(panels: Sequence[Panel], toggles: str, legend: str) -> str:
    ranges = (("1", "All steps"), ("0.5", "Last half"), ("0.1", "Last tenth"))
    buttons = "".join(
        f'<button type="button" data-share="{share}" aria-pressed="{str(share == "1").lower()}">{label}</button>'
        for share, label in ranges
    )
    plots = "".join(
        f'<div class="panel"><h3>{escape(panel["title"])} <span>{escape(panel["unit"])}</span></h3>'
        f'<svg class="plot" id="plot-{panel["key"]}" role="img" tabindex="0"'
        f' aria-label="{escape(panel["title"])} over the steps"></svg></div>'
        for panel in panels
    )
    return (
        f'<section class="card" id="charts"><div class="toolbar"><h2>Curves</h2><div class="ranges">{buttons}</div></div>'
        f'{toggles}<div class="readout" id="readout" aria-live="off"><span class="at">'
        f"The curves are drawn by a script, which this viewer does not run.</span></div>{plots}{legend}</section>"
    )


def _panels(panel_metrics: Sequence[Metric], has_annotations: bool) -> list[Panel]:
    """The first one is large and has the annotations."""
    panels = [
        {"key": _key(metric, number), "title": metric.title, "unit": metric.unit, "short": metric.short, "large": number == 0}
        for number, metric in enumerate(panel_metrics)
    ]
    return [panel | {"annotations": has_annotations, "last": number == len(panels) - 1} for number, panel in enumerate(panels)]


def _key(metric: Metric, number: int) -> str:
    """A name for the page's own use, which nothing from a log can be."""
    return metric.key if metric in metrics.METRICS else f"metric-{number}"


def _run_data(run: Run, name: str) -> dict[str, Any]:
    steps = run.steps
    with_loss = [event for event in run.evaluations if event["loss"] is not None]
    losses = finite(*(np.array([event[field] for event in with_loss], np.float64) for field in ("step", "loss")))
    validation = list(zip(losses[0].astype(int).tolist(), losses[1].tolist(), strict=True))
    return {
        "name": name,
        "curves": {},
        "validation": [[step, _rounded(value)] for step, value in _evenly(validation)],
        "checkpoints": _evenly([event["step"] for event in run.checkpoints]),
        "annotations": [vars(annotation) for annotation in annotations_of(run)],
        "times": _times(*finite(steps.numbers, steps.times)),
    }


def _curve(raw: Series, metric: Metric, options: PlotOptions) -> dict[str, Any]:
    """`held`: a smoothed point stands for a stretch of steps, so a line drawn between two points would rise too early."""
    if options.smooth_steps == 0:
        return {"raw": _points(envelope(raw, RAW_POINTS)), "smooth": _points(envelope(raw, SMOOTH_POINTS)), "held": False}
    share = LOSS_WINDOW_SHARE if metric is metrics.LOSS else WINDOW_SHARE
    smooth = smoothed(raw, share, options.smooth_steps, SMOOTH_POINTS)
    held = len(smooth[0]) < len(raw[0])
    return {"raw": _points(envelope(raw, RAW_POINTS)), "smooth": _points(smooth), "held": held}


def _points(curve: Series) -> dict[str, list[float]]:
    return {"steps": [int(step) for step in curve[0]], "values": [_rounded(value) for value in curve[1]]}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _evenly(items: list[Any]) -> list[Any]:
    """At most MAXIMUM_MARKERS of the items, the last one among them."""
    if len(items) <= MAXIMUM_MARKERS:
        return items
    return [items[index] for index in np.linspace(0, len(items) - 1, MAXIMUM_MARKERS).round().astype(int)]


def _times(steps: np.ndarray, times: np.ndarray) -> dict[str, list[Any]]:
    """When some of the steps were logged, in this machine's time zone."""
    few, seconds = thinned((steps, times), TIMES)
    texts = [datetime.datetime.fromtimestamp(second).isoformat(" ", "minutes") for second in seconds]
    return {"steps": [int(step) for step in few], "texts": texts}


def _script_json(data: object) -> str:
    """JSON that cannot end the script element that it stands in, whatever its texts are."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
