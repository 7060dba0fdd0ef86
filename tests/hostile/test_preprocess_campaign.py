"""A small sample of the fault campaign, another one than the campaign's own; `nox -s campaigns` runs all of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Each command has its calls counted first, under strace.
FAULTS_OF_PARTS = ("--runs", "4", "--command", "tokenize-in-parts")
KILLS_OF_PACK = ("--runs", "2", "--command", "pack", "--kind", "SIGKILL at random")


@pytest.mark.parametrize("chosen", [FAULTS_OF_PARTS, KILLS_OF_PACK], ids=["parts", "pack"])
def test_a_sample_of_the_campaign(chosen: tuple[str, ...]) -> None:
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    campaign = Path(__file__).parent / "campaigns/preprocess.py"
    done = subprocess.run([sys.executable, campaign, *chosen, "--seed", "5"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{chosen[1]} runs, 0 broken" in done.stdout
