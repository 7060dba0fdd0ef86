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


def changed(content: str, diff: str, name: str) -> str:
    for before, after in hunks(diff):
        assert content.count(before) == 1, f"{name} has not one such passage:\n{before}"
        content = content.replace(before, after)
    return content


def follow(recipe: str, checkout: Path) -> None:
    """Write the recipe's files below `checkout`, and make its changes."""
    blocks = BLOCK.findall(recipe)
    assert len(blocks) == len(re.findall(r"^```\w", recipe, re.MULTILINE)), "a block without the name of its file"
    for kind, name, text in blocks:
        path = checkout / name
        assert path.is_file() == (kind == "In"), name
        path.write_text(text if kind == "New file" else changed(path.read_text(), text, name))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of one pytest, which runs the tests of all recipes on one copy of the sources in which all are followed.

    The tests of the pre-tokenizer run on the new pattern alone: on the others they run without the recipe.
    """
    checkout = tmp_path_factory.mktemp("checkout")
    for name in ("shared", "tools", "tests"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    for recipe in RECIPES.values():
        follow(recipe, checkout)
    sources = [str(path) for path in (checkout / "shared/src", *checkout.glob("tools/*/src"))]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(sources), "XDG_CACHE_HOME": str(checkout / "cache")}
    arguments = [word for recipe in RECIPES.values() for word in COMMAND.findall(recipe)[0].split()]
    (new_pattern,) = re.findall(r"^\+[A-Z_]+ = (\d+)$", RECIPES["A split pattern"], re.MULTILINE)
    chosen = ("-k", f"not test_pretokenizer or {new_pattern}")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-n", "0", "-p", "no:cacheprovider", *chosen, *arguments]
    done = subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_works(name: str, outcomes: str) -> None:
    (path,) = COMMAND.findall(RECIPES[name])
    results = re.findall(rf"^([A-Z]+) .*?{re.escape(path)}\b", outcomes, re.MULTILINE)
    assert set(results) == {"PASSED"}, outcomes


def test_no_recipe_needs_another() -> None:
    """They are tried together. But what one changes is there without the others, and none names a new module of another."""
    blocks = [(recipe, *block) for recipe, text in RECIPES.items() for block in BLOCK.findall(text)]
    assert len({(recipe, path) for recipe, _, path, _ in blocks}) == len(blocks)
    for recipe, kind, path, text in blocks:
        if kind == "In":
            changed((ROOT / path).read_text(), text, path)
            continue
        code = "".join(text for other, _, _, text in blocks if other != recipe)
        assert not re.search(rf"\b{Path(path).stem}\b", code), path


def test_architecture_links_every_recipe() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    linked = re.findall(r"\(extending\.md#([\w-]+)\)", page)
    assert sorted(linked) == sorted(name.lower().replace(" ", "-") for name in RECIPES)
