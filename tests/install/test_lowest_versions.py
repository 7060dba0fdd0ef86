"""The lowest versions that the distributions' metadata allow are enough: for all help, and from text to a model and its log.

torch is the one that is installed, since its lowest is a download of 3 GB: `nox -s lowest` runs the same with that, too.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import lowest_versions
import pytest
import resolution
from packaging.requirements import Requirement

TOOLS = ("preprocess", "train", "convert", "monitor")


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that imports the lowest versions."""
    target = tmp_path_factory.mktemp("oldest")
    lowest_versions.install_beside_torch(target)
    path = os.pathsep.join([str(target), *(str(resolution.ROOT / each / "src") for each in resolution.DISTRIBUTIONS)])
    return os.environ | {"PYTHONPATH": path}


def test_they_are_the_lowest(oldest: dict[str, str]) -> None:
    required = {}
    for path in resolution.DISTRIBUTIONS:
        written = tomllib.loads((resolution.ROOT / path / "pyproject.toml").read_text())
        hook = written["tool"]["hatch"]["metadata"]["hooks"].get("custom", {})
        for line in written["project"].get("dependencies", hook.get("dependencies", [])):
            requirement = Requirement(line)
            (lower,) = (bound.version for bound in requirement.specifier if bound.operator == ">=")
            required[requirement.name] = max(required.get(requirement.name, ""), lower)
    assert len(required) > 15
    code = "import sys, json; from importlib import metadata; print(json.dumps({n: metadata.version(n) for n in sys.argv[1:]}))"
    names = [name for name in required if name != "torch"]
    done = subprocess.run([sys.executable, "-c", code, *names], env=oldest, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert {name: found[name].split(".")[:2] for name in names} == {name: [*required[name].split("."), "0"][:2] for name in names}


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
def test_every_help(tool: str, oldest: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, tool], capture_output=True, text=True, env=oldest)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()


def test_from_text_to_a_model_and_its_log(oldest: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", lowest_versions.pipeline(f"{sys.executable} -m ")],
        cwd=tmp_path,
        env=oldest,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    kinds = [json.loads(line)["kind"] for line in done.stdout.splitlines() if line.startswith("{")]
    assert {"checkpoint", "end", "step", "plot"} <= set(kinds)
    assert re.search(r"^step +6 / 6", done.stdout, re.MULTILINE)
    assert (tmp_path / "model/model.safetensors").stat().st_size > 10**6
