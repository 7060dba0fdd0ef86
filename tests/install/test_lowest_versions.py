"""The lowest versions that the distributions' metadata allow are enough for what they promise of them."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("preprocess", "train", "convert", "monitor")


def lowest(distribution: str, package: str) -> str:
    written = tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())
    dependencies = (
        written["project"].get("dependencies") or written["tool"]["hatch"]["metadata"]["hooks"]["custom"]["dependencies"]
    )
    return next(found[1] for line in dependencies if (found := re.fullmatch(rf"{package}>=([\d.]+)", line)))


@pytest.fixture(scope="module")
def oldest_click(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (version,) = {lowest(distribution, "click") for distribution in ("shared", *(f"tools/{tool}" for tool in TOOLS))}
    target = tmp_path_factory.mktemp("click")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, f"click=={version}"]
    subprocess.run(command, check=True, capture_output=True)
    return target


# In one process: each start takes a second.
HELP = """
import importlib, re, sys
from contextlib import redirect_stdout, suppress
from io import StringIO
tool = sys.argv[1]
main = importlib.import_module(f"lt_{tool}.cli").main
def help_of(*command):
    sys.argv = ["lt-" + tool, *command, "--help"]
    with redirect_stdout(StringIO()) as shown, suppress(SystemExit):
        main()
    assert f"Usage: {' '.join(['lt-' + tool, *command])} " in shown.getvalue(), command
    return shown.getvalue()
for command in re.findall("^  ([a-z-]+)  ", help_of().partition("Commands:")[2], re.M):
    help_of(command)
    print(command)
"""


@pytest.mark.parametrize("tool", TOOLS)
def test_every_help_with_the_oldest_click(tool: str, oldest_click: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(oldest_click)}
    done = subprocess.run([sys.executable, "-c", HELP, tool], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()
