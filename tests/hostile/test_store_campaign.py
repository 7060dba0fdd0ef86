"""The campaign of faults of an S3 store, in short; `nox -s campaigns -- store` runs a long one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nursery

CAMPAIGN = Path(__file__).parent / "campaigns" / "store.py"


def test_a_store_that_fails_leaves_nothing_that_looks_complete() -> None:
    words = [sys.executable, CAMPAIGN, "--runs", "2", "--seed", "1", "--command", "convert, to the store"]
    done = subprocess.run(words, env=os.environ | nursery.variables(nursery.TOOLS), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^2 runs, \d failed in order, 0 broken$", done.stdout, re.M), done.stdout
