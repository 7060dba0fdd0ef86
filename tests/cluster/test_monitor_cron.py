"""The lines of cron that the manual gives, run once by a real cron. Needs root and Debian's cron."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

STEP = " iteration {0:8d}/     100 | elapsed time per iteration (ms): 9.0 | lm loss: 2.5E+00 | number of nan iterations: {1} |\n"


def test_cron_runs_a_pass(tmp_path: Path) -> None:
    """In a mount namespace of its own, so that this cron sees no other crontab and nobody sees this one."""
    if os.geteuid() != 0 or not shutil.which("cron", path="/usr/sbin:/usr/bin"):
        pytest.skip("needs root and cron")
    (tmp_path / "run.log").write_text("".join(STEP.format(number, int(number == 9)) for number in range(1, 10)))
    tool = f"{sys.executable} -m lt_monitor"
    pipeline = (
        f"{tool} scrape --state scrape.state run.log | {tool} alert --state alert.state --heartbeat beat - > alerts 2> errors"
    )
    metrics = f"{tool} prom -o lt.prom run.log 2> prom.errors"
    (tmp_path / "crontabs").mkdir()
    crontab = tmp_path / "crontabs" / "root"
    crontab.write_text(f"* * * * * cd {tmp_path} && {pipeline}\n* * * * * cd {tmp_path} && {metrics}\n")
    crontab.chmod(0o600)
    (tmp_path / "nothing").mkdir()
    script = f"""
mount --bind {tmp_path}/crontabs /var/spool/cron/crontabs
mount --bind {tmp_path}/nothing /etc/cron.d
mount --bind /dev/null /etc/crontab
mount -t tmpfs tmpfs /run
exec /usr/sbin/cron -f"""
    with subprocess.Popen(["unshare", "--mount", "sh", "-ec", script]) as cron:
        try:
            for _ in range(1000):
                if (tmp_path / "beat").exists() and (tmp_path / "lt.prom").exists():
                    break
                assert cron.poll() is None
                time.sleep(0.1)
        finally:
            cron.terminate()
    assert (tmp_path / "errors").read_text() == ""
    assert (tmp_path / "prom.errors").read_text() == ""
    assert (tmp_path / "alerts").read_text().startswith("CRITICAL nan run: step 9:")
    assert json.loads((tmp_path / "beat").read_text())["worst"] == "critical"
    assert 'lt_train_step{run="run"} 9\n' in (tmp_path / "lt.prom").read_text()
