"""CONTRIBUTING.md names tasks that exist, and every page tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("shared/*.md"), *ROOT.glob("tools/*/*.md")]


def test_tasks_exist() -> None:
    tasks = set(re.findall(r"^@(?:task|nox\.session).*\ndef (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    page = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"^    nox -s (\w+)", page, re.MULTILINE))
    assert named and named <= tasks
    for path in re.findall(r" -- (tests/\S+)", page):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_exist(page: Path) -> None:
    text = page.read_text()
    made_by_the_page = set(re.findall(r"^New file `([^`]+)`", text, re.MULTILINE))
    named = set(re.findall(r"tests/[\w/]+\.py", text))
    assert [name for name in named - made_by_the_page if not (ROOT / name).is_file()] == []
