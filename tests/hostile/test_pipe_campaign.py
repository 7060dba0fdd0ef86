"""The campaign of kills on both sides of a pipe, in short; `nox -s campaigns -- pipe` runs a long one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nursery

CAMPAIGN = Path(__file__).parent / "campaigns/pipe.py"


def test_the_same_pipe_ends_in_the_same_losses() -> None:
    words = [sys.executable, CAMPAIGN, "--runs", "2", "--seed", "3"]
    done = subprocess.run(words, env=os.environ | nursery.variables(nursery.TRAINING), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^2 kills of \d pipes, 0 broken$", done.stdout, re.M), done.stdout
