"""The alerting rules: promtool accepts them, and they fire when they should, and only then."""

import json
import subprocess
from pathlib import Path

import pytest

from lt_monitor.prometheus import alerting_rules, exposition

RUN = '{run="r",monitor="lt"}'
LAST_RUN = 'lt_monitor_last_run_timestamp_seconds{monitor="lt"}'
HEALTHY = {
    LAST_RUN: "0+60x240",
    f"lt_train_last_step_timestamp_seconds{RUN}": "0+60x240",
    f"lt_train_last_checkpoint_timestamp_seconds{RUN}": "0+60x240",
    f"lt_train_checkpoint_interval_seconds{RUN}": "900x240",
    f"lt_train_hang_limit_seconds{RUN}": "300x240",
    f"lt_train_running{RUN}": "1x240",
    f"lt_train_failed{RUN}": "0x240",
    f"lt_train_step{RUN}": "5000+10x240",
    f"lt_train_loss{RUN}": "2.5-0.0001x240",
    f"lt_train_nan_steps_total{RUN}": "0x240",
    f"lt_train_skipped_steps_total{RUN}": "0x240",
    f"lt_train_step_seconds{RUN}": "10x240",
    f"lt_train_attempt_step_seconds{RUN}": "10x240",
    f"lt_train_tokens_per_second{RUN}": "1000x240",
    f"lt_train_restarts_total{RUN}": "0x240",
}
TROUBLE = {
    "LtMonitorStale": {LAST_RUN: "0x240"},
    "LtTrainHang": {f"lt_train_last_step_timestamp_seconds{RUN}": "0+60x100 6000x140"},
    "LtTrainFailed": {f"lt_train_failed{RUN}": "0x100 1x140"},
    "LtTrainNan": {f"lt_train_nan_steps_total{RUN}": "0x195 1+1x5 6x40"},
    "LtTrainSkippedSteps": {f"lt_train_skipped_steps_total{RUN}": "0x190 1+1x50"},
    "LtTrainLossSpike": {f"lt_train_loss{RUN}": "2.5x190 5x50"},
    "LtTrainStraggling": {f"lt_train_step_seconds{RUN}": "10x150 13x90"},
    "LtTrainThroughputDrop": {f"lt_train_tokens_per_second{RUN}": "1000x150 700x90"},
    "LtTrainCheckpointStale": {f"lt_train_last_checkpoint_timestamp_seconds{RUN}": "0+60x100 6000x140"},
    "LtTrainCrashLoop": {f"lt_train_restarts_total{RUN}": "0x160 1+1x5 6x80"},
}
SEVERITIES = {alert.name: alert.severity for alert in alerting_rules.ALERTS}


def check(promtool: str, folder: Path, tests: list[tuple[dict[str, str], list[str]]]) -> subprocess.CompletedProcess[str]:
    """`promtool test rules`: each series of `tests` with the alerts that fire after 200 minutes."""
    (folder / "rules.yml").write_text(alerting_rules.render())
    cases = []
    for series, firing in tests:
        alerts = [{"eval_time": "200m", "alertname": name, "exp_alerts": []} for name in SEVERITIES if name not in firing]
        expressions = [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing",severity="{SEVERITIES[name]}"}})',
                "eval_time": "200m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
            for name in firing
        ]
        inputs = [{"series": name, "values": value} for name, value in series.items()]
        cases.append({"interval": "1m", "input_series": inputs, "alert_rule_test": alerts, "promql_expr_test": expressions})
    # YAML reads JSON.
    (folder / "tests.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": cases}))
    return subprocess.run([promtool, "test", "rules", "tests.yml"], cwd=folder, capture_output=True, text=True)


def test_promtool_accepts_the_rules(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(alerting_rules.render())
    done = subprocess.run([promtool, "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"SUCCESS: {len(SEVERITIES)} rules found" in done.stdout


def test_each_rule_fires_for_its_trouble_and_none_for_a_healthy_run(promtool: str, tmp_path: Path) -> None:
    assert set(TROUBLE) == set(SEVERITIES)
    tests = [(HEALTHY, []), *((HEALTHY | series, [name]) for name, series in TROUBLE.items())]
    done = check(promtool, tmp_path, tests)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_check_itself_can_fail(promtool: str, tmp_path: Path) -> None:
    assert check(promtool, tmp_path, [(HEALTHY, ["LtTrainHang"])]).returncode != 0


@pytest.mark.parametrize("alert", alerting_rules.ALERTS, ids=lambda alert: alert.name)
def test_rules_ask_only_for_metrics_that_are_written(alert: alerting_rules.Alert) -> None:
    import re

    asked = set(re.findall(r"\blt_\w+", alert.expression))
    assert asked
    assert asked <= set(exposition.BY_NAME)
