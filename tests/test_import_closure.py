"""How many files the training loop loads: whoever reads or changes the loop may have to know them all.

Counted are modules of lt_train and lt_shared that importing a module loads. Imports inside functions, and imports that only type
checkers see, load nothing.
"""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {"lt_train": ROOT / "tools/train/src", "lt_shared": ROOT / "shared/src"}
TRAINER = "lt_train.train.trainer"
# The loop, one step, and all hooks around it.
LOOP = (
    TRAINER,
    "lt_train.train.train_step",
    *(f"lt_train.train.hooks.{path.stem}" for path in (SOURCES["lt_train"] / "lt_train/train/hooks").glob("[a-z]*.py")),
)


def source(module: str) -> Path | None:
    """The file of one of our modules, None for a name that is none."""
    package = module.partition(".")[0]
    if package not in SOURCES:
        return None
    path = SOURCES[package] / module.replace(".", "/")
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def statements(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run when a module is loaded."""
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.unparse(statement.test):
            yield from statements(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from statements(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from statements(handler.body)


@functools.cache
def imported(module: str) -> frozenset[str]:
    """The modules of ours that loading `module` loads first, with the packages that they are in."""
    names = [module]
    path = source(module)
    assert path is not None
    for statement in statements(ast.parse(path.read_text()).body):
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        else:
            names += [str(statement.module), *(f"{statement.module}.{alias.name}" for alias in statement.names)]
    parts = [name.split(".") for name in names if source(name)]
    return frozenset(".".join(part[:count]) for part in parts for count in range(1, len(part) + 1)) - {module}


def closure(*modules: str) -> set[str]:
    loaded: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in loaded:
            loaded.add(module)
            waiting += imported(module)
    return loaded


def test_the_closure_is_what_python_loads() -> None:
    code = f"import sys, {TRAINER}; print(*(name for name in sys.modules if name.split('.')[0] in {tuple(SOURCES)}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert set(loaded) == closure(TRAINER)


@pytest.mark.parametrize(("modules", "most"), [((TRAINER,), 20), (LOOP, 153)], ids=["loop", "loop, step and hooks"])
def test_the_training_loop_loads_few_files(modules: tuple[str, ...], most: int) -> None:
    """261 were loaded while the loop knew evaluation, checkpoints, streams, recovery and reports."""
    assert len(closure(*modules)) <= most


def test_the_loop_needs_no_room_beside_it() -> None:
    """What ends before a rank starts, what puts a run together, and what a loop is handed: logs, savers, data."""
    rooms = {module.split(".")[1] for module in closure(*LOOP) if module.startswith("lt_train.")}
    assert not rooms & {"cli", "commands", "importers", "render", "preflight", "launch", "checkpoint"}
