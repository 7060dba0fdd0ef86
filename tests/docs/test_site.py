"""What docs/generate.py makes, without mkdocs: the reference, the links of the site, the man pages."""

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import help_pages
import nursery
import pytest

from lt_convert import cli as convert
from lt_monitor import cli as monitor
from lt_monitor.alerts import thresholds
from lt_monitor.events import records
from lt_preprocess.cli import datasets, tokenize
from lt_shared import console
from lt_shared.models import presets
from lt_train import cli as train

ROOT = Path(__file__).parents[2]
TOOLS = {
    "lt-preprocess": (tokenize.command, datasets.commands),
    "lt-train": (train.command, train.commands),
    "lt-convert": (convert.command, convert.commands),
    "lt-monitor": (monitor.command, monitor.command),
}


# The words behind the tool's name; a command's own name may have a hyphen.
WORDS: dict[str, list[str]] = {}


def every_command() -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}

    def walk(name: str, command: click.Command, words: list[str]) -> None:
        found[name] = command
        WORDS[name] = words
        if isinstance(command, click.Group):
            context = click.Context(command, info_name=name)
            for each in command.list_commands(context):
                below = command.get_command(context, each)
                assert below is not None
                walk(f"{name}-{each}", below, [*words, each])

    for tool, (unnamed, group) in TOOLS.items():
        walk(tool, group, [])
        found[tool] = unnamed
    return found


COMMANDS = every_command()


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("docs")
    done = subprocess.run([nursery.light_python(), ROOT / "docs/generate.py", directory], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return directory


def shown_options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_has_every_option_of_every_command(build: Path, name: str) -> None:
    page = (build / f"pages/reference/commands/{name}.md").read_text()
    for option in shown_options(COMMANDS[name]):
        for spelling in option.opts:
            assert re.search(rf"(?<![\w-]){spelling}(?![\w-])", page), spelling
    assert "(commands/" + name + ".md)" in (build / "pages/reference/commands.md").read_text()


@pytest.fixture(scope="module")
def pages_of_help() -> dict[str, str]:
    words = [[next(tool for tool in TOOLS if name.startswith(tool)), *WORDS[name]] for name in COMMANDS]
    return dict(zip(COMMANDS, help_pages.read(words), strict=True))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_reference_says_all_that_help_says(build: Path, pages_of_help: dict[str, str], name: str) -> None:
    """Word for word: each paragraph, each option with its description, each example."""
    help_page = pages_of_help[name]
    page = squeezed((build / f"pages/reference/commands/{name}.md").read_text())
    said = [
        part
        for part in re.split(r"\n\n|\n(?=  -)", help_page.partition("\nCommands:\n")[0])
        if not part.endswith(":") and "Usage: " not in part
    ]
    assert len(said) > 3
    assert [part for part in said if squeezed(part) not in page and "  -h, --help" not in part] == []


def squeezed(text: str) -> str:
    """Without what Markdown or a narrow terminal adds."""
    return re.sub(r"[\s\\`|]", "", text)


def test_the_reference_has_no_other_command(build: Path) -> None:
    assert {path.stem for path in (build / "pages/reference/commands").iterdir()} == set(COMMANDS)


def test_the_environment_rule_is_there_where_options_are(build: Path) -> None:
    page = (build / "pages/reference/environment.md").read_text()
    for name, variable in (("lt-train", r"LT\_TRAIN\_"), ("lt-convert verify", r"LT\_CONVERT\_VERIFY\_")):
        assert re.search(rf"^\| `{name}` \|.*{re.escape(variable)}", page, re.MULTILINE)


def test_every_exit_code_has_a_meaning(build: Path) -> None:
    page = (build / "pages/reference/exit-codes.md").read_text()
    for code in console.ExitCode:
        assert re.search(rf"^\| {int(code)} \| `{code.name}` \| [^|]*\w", page, re.MULTILINE), code
    assert "| 75 | `TRY_AGAIN` | try again (requeue) | The same command is expected to succeed later. |" in page


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("models", presets.PRESETS),
        ("events", (*records.FAULTS, *records.NOTES, *records.END_REASONS)),
        ("alert-rules", thresholds.DEFAULTS),
    ],
)
def test_tables_have_every_name(build: Path, page: str, names: dict[str, object] | tuple[str, ...]) -> None:
    text = (build / f"pages/reference/{page}.md").read_text()
    assert [name for name in names if f"`{name}`" not in text] == []


def test_links_of_the_site_lead_somewhere(build: Path) -> None:
    broken = []
    for page in (build / "pages").rglob("*.md"):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^()#\s]+)[^()\s]*\)", prose):
            if "://" not in target and not (page.parent / target).exists():
                broken.append((page.name, target))
    assert broken == []


def test_guides_are_text_and_not_links(build: Path) -> None:
    for guide in (ROOT / "docs/guides").glob("*.md"):
        page = (build / f"pages/guides/{guide.name}").read_text()
        assert len(page.split()) > 100, guide
        assert not re.search(r"^\[[^\]]+\]\([^)]+\)$", page, re.MULTILINE)


def test_tabs_of_the_site_have_the_commands_of_the_page(build: Path) -> None:
    source, page = (ROOT / "docs/install.md").read_text(), (build / "pages/install.md").read_text()
    tabs = re.findall(r'^=== "(.+)"$', page, re.MULTILINE)
    assert tabs == re.findall(r"^### (.+)$", source, re.MULTILINE) and {"pip", "uv", "pipx", "CPU", "CUDA 12"} <= set(tabs)
    assert "###" not in page and "tabs" not in page
    shown = re.findall(r"^ {8}(\S.*)$", page, re.MULTILINE)
    assert shown == re.findall(r"^ {4}(\S.*)$", source, re.MULTILINE)


def test_the_search_needs_no_network(build: Path) -> None:
    """mkdocs' offline plugin adds a script from the network unless one of that name is set."""
    (script,) = re.findall(r"^  polyfills: \[(.*iframe-worker.*)\]$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert (build / "pages" / script).is_file()


def test_the_requirements_of_the_site_are_enough() -> None:
    """Of other packages than the tools', the generator imports those of docs/requirements.txt."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import generate; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    command = [sys.executable, "-c", script, ROOT / "docs"]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    by_module = metadata.packages_distributions()
    packages = {package.lower() for module in modules for package in by_module.get(module, ()) if not module.startswith("lt_")}
    required = set((ROOT / "docs/requirements.txt").read_text().split())
    # What runs in every interpreter of an environment.
    assert packages - {"setuptools", "coverage", "certifi"} <= required, packages - required


def test_every_guide_is_in_the_navigation_and_on_the_first_page() -> None:
    guides = {f"guides/{guide.name}" for guide in (ROOT / "docs/guides").glob("*.md")}
    assert set(re.findall(r": (guides/\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)) == guides
    assert set(re.findall(r"\((guides/[^)#]+)\)", (ROOT / "docs/index.md").read_text())) == guides


def test_exit_codes_of_each_tool_are_those_of_all(build: Path) -> None:
    page = (ROOT / "docs/guides/exit-codes.md").read_text()
    own = {"128+n", str(128 + signal.SIGTERM)}
    known = {str(int(code)) for code in console.ExitCode} | own
    sections = re.findall(r"^## (lt-\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert {tool for tool, _ in sections} == set(TOOLS)
    for tool, section in sections:
        codes = {code for codes in re.findall(r"^\| (\d[^|]*) \|", section, re.MULTILINE) for code in codes.split(", ")}
        assert {"0", "2", "75"} <= codes <= known, tool
        assert f"(../guides/exit-codes.md#{tool})" in (build / "pages/reference/exit-codes.md").read_text()


def test_pictures_are_small_shown_and_load_nothing(build: Path) -> None:
    pages = "".join(page.read_text() for page in ROOT.glob("docs/*.md"))
    images = list((ROOT / "docs/images").iterdir())
    assert {image.suffix for image in images} == {".png", ".svg"}
    for image in images:
        assert image.stat().st_size < 150_000
        assert f"(images/{image.name})" in pages
        assert (build / f"pages/images/{image.name}").read_bytes() == image.read_bytes()
        assert image.suffix != ".svg" or "http" not in re.sub("<!--.*?-->|xmlns=\\S+", "", image.read_text())


def test_a_broken_link_fails(tmp_path: Path) -> None:
    """In a copy of the repository's pages: the sources are those that are installed."""
    for name in ("docs", *(path.name for path in ROOT.glob("*.md"))):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for name in ("tools", "tests", "shared", "constraints.txt", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    command = [nursery.light_python(), tmp_path / "docs/generate.py", tmp_path / "build"]
    (tmp_path / "docs/faq.md").write_text("See [there](guides/nowhere.md).\n")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "docs/faq.md: links docs/guides/nowhere.md" in done.stderr
    (tmp_path / "docs/faq.md").write_text("[A section](../README.md#no-such-section)\n")
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "no section #no-such-section" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_man_page(build: Path, name: str) -> None:
    page = (build / f"pages/man/{name}.1").read_text()
    assert page.startswith(f'.TH "{name.upper()}" 1 ')
    assert re.findall(r"^\.SH (NAME|SYNOPSIS|DESCRIPTION)$", page, re.MULTILINE) == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    # And --help, which click adds.
    assert page.count("\n.TP\n") == len(shown_options(COMMANDS[name])) + 1
    known = {"TH", "SH", "PP", "TP", "nf", "fi"}
    assert {line[1:].split()[0] for line in page.splitlines() if line.startswith(".")} <= known


@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff")
def test_groff_has_no_complaints_and_loses_nothing(build: Path) -> None:
    for page in sorted((build / "pages/man").iterdir()):
        command = ["groff", "-man", "-Tascii", "-ww", "-Wbreak", "-P-c", page]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"MANWIDTH": "100"})
        assert (done.returncode, done.stderr) == (0, "")
        text = re.sub(".\x08", "", done.stdout)
        for option in shown_options(COMMANDS[page.stem]):
            assert option.opts[-1] in text


def test_figures_of_the_readmes_are_those_of_the_guide() -> None:
    guide = (ROOT / "docs/guides/speed.md").read_text()
    ratios = [float(ratio) for ratio in re.findall(r"trains\s(1\.\d+)x megatron-te", guide)]
    percents = f"{int(100 * min(ratios) - 100)}% to {int(100 * max(ratios) - 100)}% more tokens per second"
    assert percents in (ROOT / "tools/train/README.md").read_text()
    (seconds, memory) = re.findall(r"17 GB, took (\d+ s), with a peak memory of (\d+ MiB)", guide)[0]
    assert f"(17 GB) took {seconds} and {memory}" in (ROOT / "tools/convert/README.md").read_text()


def test_readmes_fit_a_screenful_or_two() -> None:
    for page in ROOT.glob("tools/*/README.md"):
        assert len(page.read_text().splitlines()) <= 90, page
