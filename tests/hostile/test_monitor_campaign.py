"""The campaign of faults on lt-monitor, in short; `nox -s campaigns -- monitor` runs a long one."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).parent / "campaigns" / "monitor.py"


def test_no_event_is_lost_or_doubled() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    done = subprocess.run([sys.executable, CAMPAIGN, "--runs", "12", "--seed", "1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(r"^12 runs; ([\d,]+) events, 0 lost, 0 doubled, .* (\d+) findings, 0 findings lost$", done.stdout, re.M)
    assert counts is not None, done.stdout
    assert int(counts[1].replace(",", "")) > 100
