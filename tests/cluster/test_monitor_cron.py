"""The lines of cron that the manual gives, run once by a real cron. Needs root and Debian's cron and faketime."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

STEP = " iteration {0:8d}/     100 | elapsed time per iteration (ms): 9.0 | lm loss: 2.5E+00 | number of nan iterations: {1} |\n"


def test_cron_runs_a_pass(cron: Callable[[str, list[Path]], None], tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("".join(STEP.format(number, int(number == 9)) for number in range(1, 10)))
    tool = f"{sys.executable} -m lt_monitor"
    pipeline = (
        f"{tool} scrape --state scrape.state run.log | {tool} alert --state alert.state --heartbeat beat - > alerts 2> errors"
    )
    metrics = f"{tool} prom -o lt.prom run.log 2> prom.errors"
    lines = f"1 * * * * cd {tmp_path} && {pipeline}; touch alerted\n1 * * * * cd {tmp_path} && {metrics}\n"
    cron(lines, [tmp_path / "alerted", tmp_path / "lt.prom"])
    assert (tmp_path / "errors").read_text() == ""
    assert (tmp_path / "prom.errors").read_text() == ""
    assert (tmp_path / "alerts").read_text().startswith("CRITICAL nan run: step 9:")
    assert json.loads((tmp_path / "beat").read_text())["worst"] == "critical"
    assert f'lt_train_step{{run="run",monitor="{tmp_path}/lt"}} 9\n' in (tmp_path / "lt.prom").read_text()
