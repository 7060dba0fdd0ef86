"""`lt-monitor plot -o FILE.html`: a report in one file, to be opened from a disk, mailed, or read on a phone.

The page has its figures and tables as plain HTML; a script of its own draws the curves as SVG. Nothing is loaded from anywhere.
Text from logs is escaped where it enters the page, and the page's content security policy runs only the script that is named by
its hash, so even a name that slipped through could not run. A curve has at most RAW_POINTS points, the extremes of each stretch:
the page of a run of a million steps has 200 kB and still shows every spike.
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
from lt_monitor.runs import speed
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.curves import EARLY_SHARE, LOSS_WINDOW_SHARE, WINDOW_SHARE, Series, envelope, finite, smoothed, thinned
from lt_monitor.runs.speed import Known, Sizes, SpeedMetric
from lt_monitor.runs.summary import Summary, summarize
from lt_monitor.views import report_tables
from lt_monitor.views.annotations import annotations_of
from lt_shared import version_of

RAW_POINTS = 3000
SMOOTH_POINTS = 1000
MAXIMUM_MARKERS = 400
TIMES = 300

Panel = dict[str, Any]


def build(
    runs: Sequence[Run], names: Sequence[str], known: Known, references: Sequence[tuple[str, float]], now: float | None = None
) -> str:
    """The page about `runs`, shown under `names`, at the time `now`, else at present. Each run has at least one step."""
    summaries = [summarize(run, known, now) for run in runs]
    measure, rates = speed.speed_curves([run.steps for run in runs], [Sizes.of(run.arguments, known) for run in runs])
    shown = [_run_data(run, printable(name), measure, rate) for run, name, rate in zip(runs, names, rates, strict=True)]
    panels = _panels(shown, measure)
    resources = importlib.resources.files("lt_monitor.views") / "report_page"
    style, script, page = ((resources / name).read_text(encoding="utf-8") for name in ("style.css", "charts.js", "page.html"))
    data = {
        "steps": [min(int(run.steps.numbers[0]) for run in runs), max(int(run.steps.numbers[-1]) for run in runs)],
        "early": EARLY_SHARE,
        "panels": panels,
        "runs": shown,
        "references": [[printable(name), value] for name, value in references],
    }
    title = printable(names[0]) if len(runs) == 1 else f"{len(runs)} training runs"
    return string.Template(page).substitute(
        title=escape(title),
        style=style,
        script=script,
        style_hash=_csp_hash(style),
        script_hash=_csp_hash(script),
        data=_script_json(data),
        body=_body(title, runs, names, summaries, panels, bool(references)),
    )


def _body(
    title: str, runs: Sequence[Run], names: Sequence[str], summaries: Sequence[Summary], panels: Sequence[Panel], references: bool
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
            _charts(panels, report_tables.legend(runs, references)),
            report_tables.attempts(runs, names),
            report_tables.faults(runs, names),
            f"<footer>Read from {escape(files[:2000])}. Made by lt-monitor {version_of('lt-monitor')} on {escape(now)}.</footer>",
        ]
    )


def _charts(panels: Sequence[Panel], legend: str) -> str:
    ranges = (("1", "All steps"), ("0.5", "Last half"), ("0.1", "Last tenth"))
    buttons = "".join(
        f'<button type="button" data-share="{share}" aria-pressed="{str(share == "1").lower()}">{label}</button>'
        for share, label in ranges
    )
    plots = "".join(
        f'<div class="panel"><h3>{panel["title"]} <span>{panel["unit"]}</span></h3>'
        f'<svg class="plot" id="plot-{panel["key"]}" role="img" tabindex="0" aria-label="{panel["title"]} over the steps"></svg>'
        "</div>"
        for panel in panels
    )
    return (
        f'<section class="card" id="charts"><div class="toolbar"><h2>Curves</h2><div class="ranges">{buttons}</div></div>'
        f'<div class="readout" id="readout" aria-live="off"><span class="at">The curves are drawn by a script, which this viewer '
        f"does not run.</span></div>{plots}{legend}</section>"
    )


def _panels(shown: Sequence[dict[str, Any]], measure: SpeedMetric) -> list[Panel]:
    """The panels that any run has a curve for."""
    candidates = [
        ("loss", "Loss", "nats per token", "loss"),
        ("grad_norm", "Gradient norm", "", "grad norm"),
        (measure.key, measure.title, measure.unit, measure.short),
    ]
    panels = [
        {"key": key, "title": title, "unit": unit, "short": short, "annotations": any(run["annotations"] for run in shown)}
        for key, title, unit, short in candidates
        if any(key in run for run in shown)
    ]
    return [panel | {"last": index == len(panels) - 1} for index, panel in enumerate(panels)]


def _run_data(run: Run, name: str, measure: SpeedMetric, rate: Series) -> dict[str, Any]:
    steps = run.steps
    loss = steps.finite("loss")
    validation = [(event["step"], event["loss"]) for event in run.evaluations if event["loss"] is not None]
    data: dict[str, Any] = {
        "name": name,
        "validation": [[step, _rounded(value)] for step, value in _evenly(validation)],
        "checkpoints": _evenly([event["step"] for event in run.checkpoints]),
        "annotations": [vars(annotation) for annotation in annotations_of(run)],
        "times": _times(*finite(steps.numbers, steps.times)),
    }
    others = {"grad_norm": steps.finite("grad_norm"), measure.key: rate}
    if len(loss[0]):
        data["loss"] = _curve(loss, LOSS_WINDOW_SHARE)
    data |= {key: _curve(raw, WINDOW_SHARE) for key, raw in others.items() if len(raw[0])}
    return data


def _curve(raw: Series, window_share: float) -> dict[str, Any]:
    """`held`: the smoothed points stand for stretches of steps. A line between two of them would rise before it should."""
    smooth = smoothed(raw, window_share, points=SMOOTH_POINTS)
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
