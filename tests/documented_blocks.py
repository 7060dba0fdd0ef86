"""The code blocks of a page, run in order as a reader would: in a directory that looks like the repository."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import nursery

ROOT = Path(__file__).parents[1]
SECONDS = 900

Done = subprocess.CompletedProcess[str]


class Block(NamedTuple):
    """`language` is "sh" or "python"."""

    language: str
    text: str


def blocks_of(page: str) -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(sh|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]


def run(block: Block, directory: Path, quick: bool = False) -> Done:
    """Offline, and without variables that set options. `quick` runs copies of imported tools, also of torchrun and its ranks:
    see tests/train/nursery.py."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("LT_")} | {"HF_HUB_OFFLINE": "1"}
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if quick:
        folders = [nursery.programs(), nursery.light_programs(), _launchers(), *folders]
        variables["PYTHON_EXEC"] = nursery.python()
    variables["PATH"] = os.pathsep.join(folders)
    is_shell = block.language == "sh"
    python = nursery.python() if quick else sys.executable
    command = ["bash", "-c", f"set -euo pipefail\n{block.text}"] if is_shell else [python, "-c", block.text]
    return subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, timeout=SECONDS)


@functools.cache
def _launchers() -> str:
    """A folder for the PATH of a shell, in which torchrun is a copy."""
    folder = Path(nursery.python()).parent / "launchers"
    folder.mkdir()
    nursery.executable(folder / "torchrun", nursery.python(), "-m", "torch.distributed.run")
    return str(folder)


def run_all(blocks: list[Block], directory: Path, quick: bool = False) -> list[Done]:
    """Later blocks use what earlier ones made."""
    (directory / "tests").symlink_to(ROOT / "tests")
    return [run(block, directory, quick) for block in blocks]


def assert_success(blocks: list[Block], done: list[Done]) -> None:
    for block, one in zip(blocks, done, strict=True):
        assert one.returncode == 0, f"{block.text}\n{one.stderr}"
        assert "Traceback" not in one.stderr
