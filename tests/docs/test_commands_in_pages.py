"""Commands on the pages of docs/: blocks are shell that bash can parse, and every option that follows an lt command exists."""

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import help_pages
import nursery
import pytest

ROOT = Path(__file__).parents[2]
# The pages of counterparts have a test of their own: tests/pipeline/test_seeds.py.
PAGES = [page for page in sorted(ROOT.glob("docs/**/*.md")) if page.parent.name != "seeds"]
TOOLS = "lt-preprocess|lt-train|lt-convert|lt-monitor"


def shell_blocks(page: Path) -> list[str]:
    return re.findall(r"^```(?:sh|bash)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def calls(page: Path) -> list[str]:
    """Every call of a tool in a block, in an indented line or between backticks, up to the end of its part of the line."""
    text = page.read_text().replace("\\\n", " ").replace("\\|", "|")
    places = [*shell_blocks(page), *re.findall(r"^    .*$", text, re.MULTILINE), *re.findall(r"`([^`\n]+)`", text)]
    return [
        part.strip()
        for place in places
        for line in place.replace("\\\n", " ").splitlines()
        for part in re.split(r"\||&&|;|>", line)
        if re.match(rf"\s*(?:srun )?(?:{TOOLS})\s", part)
    ]


@cache
def known_options(tool: str) -> frozenset[str]:
    """The options of a tool and of all commands below it."""
    [page] = help_pages.read([[tool]])
    commands = re.findall(r"^  ([a-z][\w-]*)", page.partition("\nCommands:\n")[2], re.MULTILINE)
    names = [(name,) for name in commands] + [("render", launcher) for launcher in ("slurm", "k8s") if tool == "lt-train"]
    pages = "\n".join([page, *help_pages.read([[tool, *name] for name in names])])
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", pages))


def exists(tool: str, option: str) -> bool:
    """Whether help has it, or the tool takes it: options without effect, for Megatron's command lines, are in no help."""
    if option in known_options(tool):
        return True
    command = [nursery.light_python(), "-m", tool.replace("-", "_"), option]
    return "No such option" not in subprocess.run(command, capture_output=True, text=True).stderr


def test_options_that_do_not_exist_are_noticed() -> None:
    assert exists("lt-preprocess", "--need-pad-id") and not exists("lt-preprocess", "--need-pad")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_shell_blocks_parse(page: Path) -> None:
    for block in shell_blocks(page):
        done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_exist(page: Path) -> None:
    for call in calls(page):
        tool = re.search(TOOLS, call)
        assert tool
        # What a stage is given in quotes are options of another tool.
        options = re.findall(r"(?<=\s)--?[a-zA-Z][\w-]*", re.sub(r"'[^']*'", "", call))
        assert [option for option in options if not exists(tool[0], option)] == [], call


def test_calls_are_found() -> None:
    found = [call for page in PAGES for call in calls(page)]
    assert len(found) > 30 and {re.search(TOOLS, call)[0] for call in found} == set(TOOLS.split("|"))  # type: ignore[index]


def test_the_plan_of_the_questions_is_printed() -> None:
    (command,) = [call for call in calls(ROOT / "docs/faq.md") if call.startswith("lt-train plan ")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command.split(), env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
