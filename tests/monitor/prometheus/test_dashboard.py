"""The Grafana dashboard: well-formed, without overlaps, and with expressions that Prometheus understands."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from lt_monitor.prometheus import dashboard, exposition


def expressions() -> list[str]:
    made = dashboard.dashboard()
    panels = [target["expr"] for panel in made["panels"] for target in panel["targets"]]
    return panels + [annotation["expr"] for annotation in made["annotations"]["list"]]


def test_the_command_prints_json(tool: Any) -> None:
    done = tool("dashboard")
    assert done.returncode == 0
    assert json.loads(done.stdout) == dashboard.dashboard()


def test_expressions_are_prometheus_expressions_on_our_metrics(promtool: str, tmp_path: Path) -> None:
    found = expressions()
    assert len(found) > 10
    rules = [
        {"record": f"test:{index}", "expr": expression.replace("$__rate_interval", "5m").replace("$run", ".*")}
        for index, expression in enumerate(found)
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", "rules.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"\blt_\w+", " ".join(found))) <= set(exposition.BY_NAME)


def test_panels_do_not_overlap() -> None:
    panels = dashboard.dashboard()["panels"]
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_panel_uses_the_chosen_data_source_and_run() -> None:
    made = dashboard.dashboard()
    assert {variable["name"] for variable in made["templating"]["list"]} == {"datasource", "run"}
    for panel in made["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all("$run" in target["expr"] or "lt_monitor_" in target["expr"] for target in panel["targets"])
