"""The campaign of kills on `lt-convert --shard`, in short; `nox -s campaigns -- convert_parts` runs all of it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nursery

CAMPAIGN = Path(__file__).parent / "campaigns" / "convert_parts.py"
RUNS = 4


def test_killed_parts_end_with_the_bytes_of_one_process() -> None:
    words = [sys.executable, CAMPAIGN, "--runs", str(RUNS)]
    done = subprocess.run(words, env=os.environ | nursery.variables(nursery.TOOLS), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^{RUNS} trials, 0 broken$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"[1-9]\d*  killed", done.stdout), done.stdout
