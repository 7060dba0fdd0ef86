"""The whole runner, on a small module with tests made for the purpose."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import operators
import pytest
import scores

ROOT = Path(__file__).parents[2]
MODULE = """
def sign(a):
    if a < 0:
        return -1
    return 1
"""
WEAK = """
from lt_small.number import sign

def test_of_one():
    assert sign(1) == 1
"""
IN_ANOTHER_PROCESS = """
import subprocess, sys

def test_of_minus_one():
    code = "from lt_small import number; print(number.sign(-1))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "-1\\n"
"""
AS_ANOTHER_USER = """
import os
from lt_small.number import sign

def test_of_one():
    assert sign(1) == 1

def test_of_minus_one():
    os.seteuid(1001)
    try:
        assert sign(-1) == -1
    finally:
        os.seteuid(0)
"""
ENDLESS = """
import time
from lt_small.number import sign

def test_of_one():
    while sign(1) == 2:
        time.sleep(0.1)
"""
FAILING = (
    WEAK
    + """
def test_that_fails():
    assert sign(-1) == 1
"""
)


def tried(tests: str, folder: Path, *options: str) -> tuple[int, dict[str, object], str]:
    """What the runner says of MODULE with the given tests, in a repository of its own."""
    files = {
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["shared/src"]\naddopts = "--import-mode=importlib"\n',
        "shared/src/lt_small/__init__.py": "",
        "shared/src/lt_small/number.py": MODULE,
        "tests/shared/test_number.py": tests,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, ROOT / "tests/mutants/mutants.py", "shared/src/lt_small/number.py", "--json", *options]
    # These tests need no plugin: half of what a start of pytest takes.
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(folder / "shared/src"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert {name: (folder / name).read_text() for name in files} == files
    return done.returncode, json.loads(done.stdout), done.stderr


def statuses(result: dict[str, object]) -> dict[str, str]:
    return {one["after"]: one["status"] for one in result["mutants"]}  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, object], str]:
    return tried(WEAK, tmp_path_factory.mktemp("weak"))


def test_survivors_and_victims(weak: tuple[int, dict[str, object], str]) -> None:
    code, result, _ = weak
    assert code == 1
    assert statuses(result) == {
        "if a <= 0:": "survived",
        "if a >= 0:": "killed",
        "if a < 1:": "survived",
        "return None": "killed",
        "return +1": "survived",
        "return -2": "survived",
        "return 2": "killed",
    }
    assert result["score"] == 0.375


def test_processes_that_tests_start_have_the_mutant(tmp_path: Path) -> None:
    _, result, _ = tried(IN_ANOTHER_PROCESS, tmp_path, "--lines", "4-5")
    found = statuses(result)
    assert found["return +1"] == found["return -2"] == "killed"
    assert found["return 2"] == "survived"


def test_what_a_process_without_rights_executes_is_known(tmp_path: Path) -> None:
    """Tests that act as another user cannot write where the lines are collected."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    _, result, _ = tried(AS_ANOTHER_USER, tmp_path, "--lines", "4")
    assert statuses(result)["return +1"] == "killed"


def test_a_test_without_end_is_ended(tmp_path: Path) -> None:
    _, result, _ = tried(ENDLESS, tmp_path, "--lines", "5")
    assert statuses(result) == {"return None": "survived", "return 2": "timed out"}


def test_a_test_that_fails_anyway_kills_nothing(tmp_path: Path) -> None:
    _, result, said = tried(FAILING, tmp_path, "--lines", "4")
    assert "test_that_fails" in said
    assert statuses(result) == dict.fromkeys(("return None", "return +1", "return -2"), "survived")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_numbers.py", "--tests tests/shared/test_numbers.py does not exist; paths are relative to {folder}"),
        (
            "test_nothing.py",
            "no test that passes executes shared/src/lt_small/number.py; name others with --tests",
        ),
    ],
)
def test_tests_that_do_not_execute_the_module_are_refused(name: str, message: str, tmp_path: Path) -> None:
    """Every mutant would survive: a score of 0% that says nothing."""
    (tmp_path / "tests/shared").mkdir(parents=True)
    (tmp_path / "tests/shared/test_nothing.py").write_text("def test_nothing():\n    pass\n")
    (tmp_path / "shared/src/lt_small").mkdir(parents=True)
    (tmp_path / "shared/src/lt_small/number.py").write_text(MODULE)
    command = [sys.executable, ROOT / "tests/mutants/mutants.py", "shared/src/lt_small/number.py"]
    run = subprocess.run([*command, "--tests", f"tests/shared/{name}"], cwd=tmp_path, capture_output=True, text=True)
    assert run.stderr == f"mutants: error: {message.format(folder=tmp_path)}\n"
    assert (run.returncode, run.stdout) == (1, "")


def test_equivalent_mutants_do_not_count() -> None:
    source = b"def f(a):\n    return a < 1\n"
    mutants = operators.mutants(source)
    outcomes = [scores.Outcome(one, "survived" if b"<=" in one.replacement else "killed", 1, "t") for one in mutants]
    strict = scores.Report("m.py", source, outcomes, {})
    assert [one.mutant.replacement for one in strict.survivors()] == [b"<="]
    assert strict.score() == 1 - 1 / len(mutants)
    lenient = scores.Report("m.py", source, outcomes, {("return a < 1", "return a <= 1"): "why"})
    assert (lenient.score(), lenient.stale()) == (1.0, [])
    stale = scores.Report("m.py", source, outcomes, {("return a < 1", "return a >= 1"): "why"})
    assert stale.stale() == [("return a < 1", "return a >= 1")]


def test_every_listed_mutant_exists() -> None:
    """The runner finds out whether it is equivalent; here only that its lines are still there, which takes no compiler."""
    for module, listed in tomllib.loads(scores.LIST.read_text()).items():
        source = (ROOT / module).read_bytes()
        report = scores.Report(module, source, [], {})
        changes = {report.change(one) for one in operators.candidates(source) if one.apply(source) != source}
        assert [one for one in listed if (one["before"], one["after"]) not in changes] == []
        assert all(one["reason"] for one in listed)
