"""The Python API: docs/api.md is true, names are imported on first use, and types reach those who use them."""

import ast
import doctest
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nursery
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "api.md"
PACKAGES = ("lt_shared", "lt_preprocess", "lt_train", "lt_convert", "lt_monitor")
PUBLIC = [(package, name) for package in PACKAGES for name in importlib.import_module(package).__all__ if name != "__version__"]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in which the README's pipeline has run, with a sample at a time."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    _, _, section = (ROOT / "README.md").read_text().partition("## The pipeline\n")
    script = section.partition("```sh\n")[2].partition("```")[0].replace("--micro-batch-size 4", "--micro-batch-size 1")
    # tests/pipeline/test_readme.py runs the commands as they are installed; here, copies of what has been imported.
    for tool in ("preprocess", "convert", "monitor"):
        nursery.executable(tmp_path / f"lt-{tool}", nursery.light_python(), "-m", f"lt_{tool}")
    folders = f"{tmp_path}:{nursery.programs()}:{Path(sys.executable).parent}"
    command = ["bash", "-c", f"PATH={folders}:$PATH; set -eo pipefail\n{script}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("pipeline")
def test_the_examples_of_the_page_are_true() -> None:
    page = doctest.DocTestParser().get_doctest(PAGE.read_text(), {}, PAGE.name, str(PAGE), 0)
    assert len(page.examples) > 20
    for example in page.examples:
        # tests/monitor/runs/test_training_logs.py says so where pandas is not installed.
        if "frame" in example.source and importlib.util.find_spec("pandas") is None:
            example.options[doctest.SKIP] = True
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(page, out=report.append)
    assert result.failed == 0, "".join(report)


def test_the_page_lists_what_is_public() -> None:
    errors, packages = [re.findall(rf"^\| `{first}` \|.*$", PAGE.read_text(), re.MULTILINE) for first in (r"[A-Z]\w+", r"lt_\w+")]
    listed = {(row.split("`")[1], name) for row in packages for name in re.findall(r"`(\w+)[.\w]*`", row)[1:]}
    assert listed | {("lt_shared", row.split("`")[1]) for row in errors} | {("lt_shared", "ToolError")} == set(PUBLIC)


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_what_is_public(package: str) -> None:
    """They do not call `__getattr__`, so each name is imported for them, too."""
    path = Path(str(importlib.import_module(package).__file__))
    [block] = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {
        alias.asname: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert {(package, name) for name in seen} == {one for one in PUBLIC if one[0] == package}
    for name, module in seen.items():
        assert getattr(importlib.import_module(package), name) is getattr(importlib.import_module(str(module)), str(name))
    assert (path.parent / "py.typed").exists()


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_public_names_are_documented_and_listed(package: str, name: str) -> None:
    module = importlib.import_module(package)
    assert name in dir(module)
    assert inspect.getdoc(getattr(module, name))
    assert getattr(module, name) is getattr(module, name)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_what_it_exports_on_first_use(package: str) -> None:
    code = f"""
import json, sys
before = set(sys.modules)
import {package}
imported = sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names))
dir({package})
assert {package}.__version__
import {package} as again
from {package} import *
print(json.dumps([imported, sorted(set({package}.__all__) - set(globals()))]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported, missing = json.loads(done.stdout)
    assert imported == sorted({package, "lt_shared"}) and missing == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_is_not_there(package: str) -> None:
    with pytest.raises(AttributeError, match=f"^module '{package}' has no attribute 'nothing'$"):
        _ = importlib.import_module(package).nothing
    assert not hasattr(importlib.import_module(package), "__wrapped__")


def test_the_errors_of_the_page_have_their_exit_codes() -> None:
    import lt_shared

    rows = re.findall(r"^\| `(\w+)` \| .* \| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    for name, code in rows:
        assert getattr(lt_shared, name).exit_code == int(code)


@pytest.mark.parametrize(
    ("program", "variables", "timeout"),
    [
        ("/venv/bin/lt-monitor", {}, "4"),
        ("-m", {}, "4"),
        ("/venv/bin/lt-monitor", {"OPENBLAS_THREAD_TIMEOUT": "20"}, "20"),
        ("ipykernel_launcher.py", {}, "None"),
    ],
)
def test_threads_of_numpy_sleep_in_programs_and_stay_as_they_are_in_notebooks(
    program: str, variables: dict[str, str], timeout: str
) -> None:
    script = f"import os, sys; sys.argv = [{program!r}]; import lt_shared; print(os.environ.get('OPENBLAS_THREAD_TIMEOUT'))"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"} | variables
    assert subprocess.check_output([sys.executable, "-c", script], text=True, env=environment).strip() == timeout
