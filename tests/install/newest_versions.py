"""Run the tests that touch other packages with the newest versions that pip would take: `nox -s newest`.

It prints a table: the version of constraints.txt, the newest on the package index, the version that the requirements of all
packages allowed, and the tests. docs/versions.md has the table of a day.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pinned_versions
import resolution
from packaging.requirements import Requirement

# The tests that call a package. Those of a room that calls several count for each.
TESTS: Mapping[str, tuple[str, ...]] = {
    "tokenizers": ("tests/preprocess/tokenizers", "tests/convert/tokenizers"),
    "transformers": ("tests/convert/tokenizers", "tests/convert/formats/huggingface", "tests/convert/commands/merge"),
    "safetensors": ("tests/convert/tensors", "tests/convert/formats/huggingface"),
    "datasets": ("tests/preprocess/readers",),
    "torch": ("tests/train/models", "tests/train/optim", "tests/convert/formats", "tests/shared/archives"),
    "megatron-core": ("tests/train/models", "tests/train/megatron", "tests/train/checkpoint", "tests/convert/formats/megatron"),
    "click": ("tests/test_conventions.py", "tests/shared/console", "tests/monitor/cli", "tests/preprocess/cli"),
    "numpy": ("tests/shared", "tests/preprocess/datasets"),
    "numba": ("tests/preprocess/compiler", "tests/preprocess/tokenizers"),
    "fsspec": ("tests/shared/files", "tests/preprocess/readers"),
    "tensorboard": ("tests/train/metrics", "tests/train/config/settings"),
}
LIST_VERSIONS = ("index", "versions", "--json")


def requirements() -> list[Requirement]:
    """What the distributions require of others, extras included."""
    lines: list[str] = []
    for path in resolution.DISTRIBUTIONS:
        written = tomllib.loads((resolution.ROOT / path / "pyproject.toml").read_text())
        lines += written["project"].get("dependencies", [])
        lines += written["tool"]["hatch"]["metadata"]["hooks"]["custom"].get("dependencies", [])
        lines += [line for extra in written["project"].get("optional-dependencies", {}).values() for line in extra]
    return [one for one in map(Requirement, lines) if not one.name.startswith("lt-")]


def newest_on_index(name: str, with_prereleases: bool) -> str:
    """The newest version of a package, for any Python."""
    options = ["--pre"] if with_prereleases else []
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *LIST_VERSIONS, *options, name]
    done = subprocess.run(command, capture_output=True, text=True)
    return str(json.loads(done.stdout)["latest"]) if done.returncode == 0 else "?"


def installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def outcomes(report: Path) -> dict[str, tuple[int, int]]:
    """How many tests of each file passed and failed, from pytest's report in JUnit's XML. Skipped ones count as neither."""
    counts: dict[str, tuple[int, int]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        path = case.get("file") or "/".join(case.get("classname", "").split(".")) + ".py"
        passed, failed = counts.get(path, (0, 0))
        if any(case.find(kind) is not None for kind in ("failure", "error")):
            failed += 1
        elif case.find("skipped") is None:
            passed += 1
        counts[path] = passed, failed
    return counts


def result(paths: tuple[str, ...], counts: Mapping[str, tuple[int, int]]) -> str:
    """Sum up the files below `paths`."""
    chosen = [count for path, count in counts.items() if path.startswith(tuple(one.removesuffix(".py") for one in paths))]
    passed, failed = sum(count[0] for count in chosen), sum(count[1] for count in chosen)
    if not passed and not failed:
        return "not run"
    return f"{failed} failed, {passed} passed" if failed else f"{passed} passed"


def table(counts: Mapping[str, tuple[int, int]], with_prereleases: bool) -> str:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    pinned = pinned_versions.of(python)
    lines = ["| package | constraints.txt | newest | installed | tests |", "|---|---|---|---|---|"]
    for name, paths in TESTS.items():
        cells = (name, pinned.get(name, "none"), newest_on_index(name, with_prereleases), installed(name), result(paths, counts))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s newest --", allow_abbrev=False)
    parser.add_argument("--pre", action="store_true", help="list pre-releases too")
    parser.add_argument("--package", action="append", choices=TESTS, help="run the tests of this package only")
    chosen, words = parser.parse_known_args()
    packages = chosen.package or list(TESTS)
    paths = sorted({path for name in packages for path in TESTS[name] if (resolution.ROOT / path).exists()})
    paths = [path for path in paths if not any(path != other and path.startswith(f"{other}/") for other in paths)]
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--junitxml", str(report), "-o", "junit_family=xunit1", *paths, *words]
        done = subprocess.run(command, cwd=resolution.ROOT)
        counts = outcomes(report) if report.is_file() else {}
    print(table(counts, chosen.pre))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
