"""docs/extending.md is followed word for word: each recipe changes a copy of the sources, and its own command runs there."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/extending.md").read_text()
RECIPES = {section.partition("\n")[0]: section for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}
BLOCK = re.compile(r"^(New file|In) `([^`]+)`[^\n]*:\n\n```(?:python|diff)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    nox -s tests -- (.+)$", re.MULTILINE)


def hunks(diff: str) -> list[tuple[str, str]]:
    """The text before and after each hunk, `@@` between two of them; an empty line is one of context."""
    found = []
    for hunk in re.split(r"^@@\n", diff, flags=re.MULTILINE):
        lines = [line or " " for line in hunk.splitlines()]
        sides = [[line[1:] + "\n" for line in lines if line[0] in marks] for marks in (" -", " +")]
        found.append(("".join(sides[0]), "".join(sides[1])))
    return found


def follow(recipe: str, checkout: Path) -> None:
    """Write the recipe's files below `checkout`, and make its changes."""
    blocks = BLOCK.findall(recipe)
    assert len(blocks) == len(re.findall(r"^```\w", recipe, re.MULTILINE)), "a block without the name of its file"
    for kind, name, text in blocks:
        path = checkout / name
        assert path.is_file() == (kind == "In"), name
        if kind == "New file":
            path.write_text(text)
            continue
        for before, after in hunks(text):
            content = path.read_text()
            assert content.count(before) == 1, f"{name} has not one such passage:\n{before}"
            path.write_text(content.replace(before, after))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("shared", "tools", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_works(name: str, checkout: Path) -> None:
    follow(RECIPES[name], checkout)
    (arguments,) = COMMAND.findall(RECIPES[name])
    sources = [str(path) for path in (checkout / "shared/src", *checkout.glob("tools/*/src"))]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sources), "XDG_CACHE_HOME": str(checkout / "cache")}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments.split()]
    done = subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout) and "skipped" not in done.stdout, done.stdout


def test_architecture_links_every_recipe() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    linked = re.findall(r"\(extending\.md#([\w-]+)\)", page)
    assert sorted(linked) == sorted(name.lower().replace(" ", "-") for name in RECIPES)
