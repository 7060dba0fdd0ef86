"""The campaign of kills on both sides of a pipe, in short; `nox -s campaigns -- pipe` runs a long one."""

import re
import subprocess
import sys
from pathlib import Path

CAMPAIGN = Path(__file__).parent / "campaigns/pipe.py"


def test_the_same_pipe_ends_in_the_same_losses() -> None:
    done = subprocess.run([sys.executable, CAMPAIGN, "--runs", "4", "--seed", "3"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^4 kills of \d pipes, 0 broken$", done.stdout, re.M), done.stdout
