"""The campaign of short transfers and failing calls, in short; `nox -s campaigns -- transfers` runs a long one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nursery
import pytest

CAMPAIGN = Path(__file__).parent / "campaigns" / "transfers.py"
RUNS = {"preprocess": 6, "convert": 6, "train": 1, "monitor": 6}


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("tool", RUNS)
def test_a_short_transfer_changes_no_byte(tool: str) -> None:
    words = [sys.executable, CAMPAIGN, tool, "--runs", str(RUNS[tool]), "--seed", "5"]
    variables = nursery.variables(nursery.TOOLS) | (nursery.variables(nursery.TRAINING) if tool == "train" else {})
    done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(rf"^{RUNS[tool]} runs, ([\d,]+) faults, 0 broken$", done.stdout, re.MULTILINE)
    assert counts is not None, done.stdout
    assert int(counts[1].replace(",", "")) > 20 * RUNS[tool]
