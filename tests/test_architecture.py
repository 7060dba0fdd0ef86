"""docs/architecture.md names every room of every tool, and files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
TOOLS = sorted(path.name for path in (ROOT / "tools").iterdir())


def section(tool: str) -> str:
    _, _, text = PAGE.partition(f"## lt-{tool}:")
    return text.partition("\n## ")[0]


def package(tool: str) -> Path:
    return ROOT / ("shared" if tool == "shared" else f"tools/{tool}") / f"src/lt_{tool}"


@pytest.mark.parametrize("tool", ["shared", *TOOLS])
def test_every_room_is_named(tool: str) -> None:
    rooms = {path.parent.name for path in package(tool).rglob("__init__.py") if path.parent != package(tool)}
    # A family is a table, not a room that work passes through; the command line may be one file.
    rooms = rooms - {"families"} | ({"cli"} if tool != "shared" else set())
    picture = section(tool).partition("\nFrom ")[0]
    listed = re.findall(r"^ {4,6}([a-z_]+(?:, [a-z]+)*) ", picture, re.MULTILINE)
    assert {room for line in listed for room in line.split(", ")} == rooms


@pytest.mark.parametrize("tool", TOOLS)
def test_files_named_in_a_tools_section_exist(tool: str) -> None:
    for name in re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", section(tool)):
        assert (package(tool) / name).is_file(), name


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert (ROOT / "docs" / target).exists(), target


def test_a_batch_is_followed_to_its_gradient_in_twelve_files() -> None:
    steps = re.findall(r"^\d+\. \[", section("train"), re.MULTILINE)
    assert len(steps) <= 12
