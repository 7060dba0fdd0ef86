"""The campaign of faults on lt-train, in short; `nox -s campaigns -- train` runs a long one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nursery
import pytest

CAMPAIGN = Path(__file__).parent / "campaigns" / "train.py"


def test_the_same_command_ends_where_an_undisturbed_run_ends() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    words = [sys.executable, CAMPAIGN, "--runs", "2", "--command", "staged"]
    done = subprocess.run(words, env=os.environ | nursery.variables(nursery.TRAINING), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^2 runs, \d interrupted, 0 broken$", done.stdout, re.M), done.stdout
