"""Which tests are tried on the mutants of a module.

Candidates are the files of tests that mirror the module, lie in the mirrored folder, or import the module.
They run once with every line of the module traced, in the processes that they start as well. A mutant is then tried on the tests
that execute its statement: quick ones first, those that mirror the module before others.
"""

import ast
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

from mutant_plugin import HOOK
from operators import Mutant

# nox runs its tasks there.
ROOT = Path.cwd()


@dataclasses.dataclass(frozen=True)
class Module:
    """`path` as given, `name` as it is imported, `tests` its distribution's folder of tests."""

    path: Path
    name: str
    tests: Path

    @classmethod
    def at(cls, path: str) -> "Module":
        file = Path(path).resolve()
        parts = file.relative_to(ROOT).parts
        if "src" not in parts or file.suffix != ".py" or not file.is_file():
            raise SystemExit(
                f"mutants: error: {path} is not a module of a distribution, e.g. shared/src/lt_shared/files/storage.py"
            )
        names = parts[parts.index("src") + 1 :]
        folder = "shared" if parts[0] == "shared" else parts[1]
        name = ".".join(names).removesuffix(".py").removesuffix(".__init__")
        return cls(file, name, ROOT / "tests" / folder)

    @property
    def shown(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def mirror(self) -> Path:
        """The file of tests that has the module's name."""
        rooms = self.name.split(".")[1:-1]
        return self.tests.joinpath(*rooms, f"test_{self.path.stem}.py")

    def environment(self, **more: str) -> dict[str, str]:
        """What processes need to take part: the hook on the path, and what it asks for."""
        paths = [HOOK, *filter(None, [os.environ.get("PYTHONPATH")])]
        ours = {"PYTHONPATH": os.pathsep.join(paths), "LT_MUTANT_MODULE": self.name, "LT_MUTANT_FILE": str(self.path)}
        return ours | {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"} | more


def candidates(module: Module) -> list[Path]:
    """Files of tests, the mirror first."""
    own = [file for file in module.tests.rglob("test_*.py") if file.parent == module.mirror.parent or imports(file, module.name)]
    attacks = [file for file in (ROOT / "tests/hostile").rglob("test_*.py") if imports(file, module.name)]
    return sorted({*own, *attacks}, key=lambda file: (file != module.mirror, file))


def imports(file: Path, module: str) -> bool:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import) and any(one.name == module for one in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            names = {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
            if module in names:
                return True
    return False


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What the unchanged module does: seconds of each test that passes, the tests of each line, and those that did not pass."""

    seconds: dict[str, float]
    by_line: dict[int, set[str]]
    failed: list[str]
    mirror: str

    @property
    def executes_module(self) -> bool:
        return any(not tests.isdisjoint(self.seconds) for tests in self.by_line.values())

    def tests_of(self, mutant: Mutant) -> list[str]:
        lines = range(mutant.first, mutant.last + 1)
        if mutant.function is None:
            # What runs at import matters to all that use the module.
            found = set().union(*self.by_line.values())
        else:
            found = set().union(*(self.by_line.get(line, set()) for line in lines))
        known = [node for node in found if node in self.seconds]
        files: dict[str, float] = {}
        for node in known:
            files[file_of(node)] = files.get(file_of(node), 0.0) + self.seconds[node]

        def order(node: str) -> tuple[bool, float, str, float, str]:
            return (file_of(node) != self.mirror, files[file_of(node)], file_of(node), self.seconds[node], node)

        return sorted(known, key=order)


def file_of(node: str) -> str:
    return node.partition("::")[0]


def measure(module: Module, files: list[Path], directory: Path) -> Baseline:
    """Run the tests on the unchanged module."""
    lines, timings = directory / "lines", directory / "timings.json"
    lines.mkdir()
    environment = module.environment(LT_MUTANT_LINES=str(lines), LT_MUTANT_TIMINGS=str(timings))
    done = pytest_run([*map(str, files)], directory / "baseline", environment)
    if not timings.exists():
        raise SystemExit(f"mutants: error: the tests do not run\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    outcomes = json.loads(timings.read_text())
    seconds = {node: one["seconds"] for node, one in outcomes.items() if one["passed"]}
    by_line: dict[int, set[str]] = {}
    for file in lines.iterdir():
        for entry in file.read_text().splitlines():
            line, _, test = entry.partition(" ")
            by_line.setdefault(int(line), set()).add(ast.literal_eval(test))
    failed = sorted(set(outcomes) - set(seconds))
    return Baseline(seconds, by_line, failed, str(module.mirror.relative_to(ROOT)))


def pytest_run(words: list[str], temporary: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, with the plugin."""
    options = ["-p", "mutant_plugin", "-p", "no:cacheprovider", "-qq", "-s", f"--basetemp={temporary}"]
    path = os.pathsep.join([environment["PYTHONPATH"], str(Path(__file__).parent)])
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words],
        cwd=ROOT, env=os.environ | environment | {"PYTHONPATH": path}, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
