"""`lt-monitor dashboard`: a Grafana dashboard for the metrics that `lt-monitor prom` writes.

Import it unchanged: the user chooses the data source and the runs in the dashboard. Written for Grafana 10 and later.
"""

import dataclasses
from typing import Any

COLUMNS = 24
RUNS = '{run=~"$run"}'


@dataclasses.dataclass(frozen=True)
class Panel:
    """`targets` are pairs of expression and legend; `width` is in columns of 24, `unit` as Grafana names them."""

    title: str
    targets: tuple[tuple[str, str], ...]
    unit: str
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    custom: dict[str, Any] = dataclasses.field(default_factory=dict)


_BIG = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
PANELS = (
    Panel("Step", ((f"lt_train_step{RUNS}", "{{run}}"),), "none", "stat", 6, 4, _BIG),
    Panel("Since the last step", ((f"time() - lt_train_last_step_timestamp_seconds{RUNS}", "{{run}}"),), "s", "stat", 6, 4, _BIG),
    Panel("Goodput", ((f"lt_train_goodput_ratio{RUNS}", "{{run}}"),), "percentunit", "stat", 6, 4, _BIG),
    Panel(
        "Time left",
        ((f"(lt_train_total_steps{RUNS} - lt_train_step{RUNS}) * lt_train_step_seconds{RUNS}", "{{run}}"),),
        "s", "stat", 6, 4, _BIG,
    ),
    Panel(
        "Loss", ((f"lt_train_loss{RUNS}", "{{run}}"), (f"lt_train_validation_loss{RUNS}", "{{run}} validation")), "none", width=24
    ),
    Panel("Tokens per second", ((f"lt_train_tokens_per_second{RUNS}", "{{run}}"),), "short"),
    Panel("Seconds per step", ((f"lt_train_step_seconds{RUNS}", "{{run}}"),), "s"),
    Panel("Gradient norm", ((f"lt_train_grad_norm{RUNS}", "{{run}}"),), "short"),
    Panel("MFU", ((f"lt_train_mfu_ratio{RUNS}", "{{run}}"),), "percentunit"),
    Panel(
        "Lost time by reason",
        ((f"sum by (reason) (increase(lt_train_badput_seconds_total{RUNS}[$__rate_interval]))", "{{reason}}"),),
        "s", custom={"stacking": {"mode": "normal"}, "fillOpacity": 40},
    ),
    Panel(
        "Restarts, faults, skipped and NaN steps",
        (
            (f"increase(lt_train_restarts_total{RUNS}[$__rate_interval])", "{{run}} restarts"),
            (f"sum by (run, fault) (increase(lt_train_faults_total{RUNS}[$__rate_interval])) > 0", "{{run}} {{fault}}"),
            (f"increase(lt_train_skipped_steps_total{RUNS}[$__rate_interval])", "{{run}} skipped"),
            (f"increase(lt_train_nan_steps_total{RUNS}[$__rate_interval])", "{{run}} NaN"),
        ),
        "short", custom={"drawStyle": "bars", "fillOpacity": 60},
    ),
    Panel("Age of the last checkpoint", ((f"time() - lt_train_last_checkpoint_timestamp_seconds{RUNS}", "{{run}}"),), "s"),
    Panel("Age of these figures", (("time() - lt_monitor_last_run_timestamp_seconds", "{{instance}} {{monitor}}"),), "s"),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's import takes it."""
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "title": "Training runs (lt-monitor)",
        "uid": "lt-monitor-runs",
        "tags": ["lt-monitor"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables(source)},
        "annotations": {"list": [_restarts(source)]},
        "panels": _placed(source),
    }


def _variables(source: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
        {
            "name": "run",
            "label": "Run",
            "type": "query",
            "datasource": source,
            "query": {"query": "label_values(lt_train_step, run)", "refId": "run"},
            "definition": "label_values(lt_train_step, run)",
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        },
    ]


def _restarts(source: dict[str, str]) -> dict[str, Any]:
    return {
        "name": "Restarts",
        "datasource": source,
        "enable": True,
        "iconColor": "orange",
        "expr": f"changes(lt_train_restarts_total{RUNS}[2m]) > 0",
        "titleFormat": "restart",
        "textFormat": "{{run}}",
        "step": "60s",
    }


def _placed(source: dict[str, str]) -> list[dict[str, Any]]:
    """The panels from left to right, in rows as high as their highest."""
    placed = []
    x = y = height = 0
    for number, panel in enumerate(PANELS, start=1):
        if x + panel.width > COLUMNS:
            x, y, height = 0, y + height, 0
        targets = [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": source}
            for index, (expression, legend) in enumerate(panel.targets)
        ]
        placed.append(
            {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "datasource": source,
                "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
                "targets": targets,
                "fieldConfig": {"defaults": {"unit": panel.unit, "custom": panel.custom}, "overrides": []},
                "options": panel.options,
            }
        )
        x, height = x + panel.width, max(height, panel.height)
    return placed
