"""The campaign of faults on lt-convert, in short; `nox -s campaigns -- convert` runs all of it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nursery
import pytest

CAMPAIGN = Path(__file__).parent / "campaigns" / "convert.py"
RUNS = 4


def test_the_old_result_the_new_one_or_one_that_resumes() -> None:
    """A run of each of these many kinds of faults."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    words = [sys.executable, CAMPAIGN, "--runs", str(RUNS)]
    done = subprocess.run(words, env=os.environ | nursery.variables(nursery.TOOLS), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.search(rf"^{RUNS} runs, (\d+) resumed, 0 broken$", done.stdout, re.MULTILINE)
    assert counts is not None, done.stdout
    assert int(counts[1]) > 0
    assert len(done.stdout.splitlines()) > RUNS * 3 // 4, "kinds of faults"
