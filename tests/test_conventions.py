"""What every tool does alike. A tool that is added under tools/ is tested here without a change."""

import functools
import importlib
import io
import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BINARIES = Path(sys.executable).parent
TOOLS = [tomllib.loads(path.read_text())["project"]["name"] for path in sorted((ROOT / "tools").glob("*/pyproject.toml"))]
OF_EVERY_COMMAND = ("-h", "--help", "-h, --help", "--version", "-q, --quiet", "-v, --verbose")
HEAVY = {"torch", "numba", "megatron", "transformers", "pyarrow", "matplotlib", "numpy", "rich", "fsspec", "tokenizers"}


def start(tool: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the installed program in a process of its own."""
    return subprocess.run([BINARIES / tool, *arguments], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def run(tool: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call the function behind the program in this process: a start takes ten times the time of a help page."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch, open(os.devnull) as nothing:
        for name, value in (("argv", [tool, *arguments]), ("stdin", nothing), ("stdout", output), ("stderr", errors)):
            patch.setattr(sys, name, value)
        for variable, value in environment.items():
            patch.setenv(variable, value)
        try:
            with pytest.raises(SystemExit) as end:
                importlib.import_module(f"{tool.replace('-', '_')}.cli").main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    texts = [stream.buffer.getvalue().decode() for stream in (output, errors)]
    return subprocess.CompletedProcess([tool, *arguments], int(end.value.code or 0), *texts)


@functools.cache
def help_pages(tool: str, *command: str) -> dict[tuple[str, ...], str]:
    """The help of a tool and of each of its subcommands, and theirs."""
    page = run(tool, *command, "--help").stdout
    _, _, commands = page.partition("\nCommands:\n")
    pages = {command: page}
    # The default command of a tool lists the named ones, which do not list it.
    if not command or " COMMAND " in page:
        for name in re.findall(r"^  ([a-z][\w-]*)", commands, re.MULTILINE):
            pages |= help_pages(tool, *command, name)
    return pages


def options(page: str) -> dict[str, str]:
    """The names of each option ("-o, --output") and its description, without --help and --version."""
    _, _, section = page.partition("\nOptions:\n")
    entries = re.split(r"\n(?=  -)", "\n" + re.split(r"\n\n(?=Commands:|The environment )", section)[0])[1:]
    matches = {
        names[0].strip(): " ".join(entry.split())
        for entry in entries
        if (names := re.match(r"  (-[\w-]+, )?--[\w-]+|  -h(?= )", entry))
    }
    assert len(matches) == len(entries)
    return {names: description for names, description in matches.items() if names not in OF_EVERY_COMMAND}


def test_all_tools_are_there() -> None:
    assert set(TOOLS) == {"lt-preprocess", "lt-train", "lt-convert", "lt-monitor"}


@pytest.mark.parametrize(
    # lt-train's -h shows less: test_short_help_fits_a_screen.
    ("tool", "option"),
    [(tool, option) for tool in TOOLS for option in ("-h", "--help") if (tool, option) != ("lt-train", "-h")],
)
def test_help_begins_with_examples_that_call_the_tool(tool: str, option: str) -> None:
    result = run(tool, option)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("Examples:\n\n")
    examples = result.stdout.partition("Usage:")[0]
    assert f"{tool} " in examples


@pytest.mark.parametrize("tool", TOOLS)
def test_subcommands_follow_the_same_conventions(tool: str) -> None:
    for page in help_pages(tool).values():
        assert page.startswith("Examples:\n\n")
        assert re.search("^  -h[, ]", page, re.MULTILINE) and "--help" in page
        assert "  -q, --quiet " in page and "  -v, --verbose " in page


@pytest.mark.parametrize("tool", TOOLS)
def test_version(tool: str) -> None:
    result = start(tool, "--version")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(rf"{tool} \d+\.\d+\.\d+(\.dev0)?\nPython 3\.\d+\.\d+(, [\w-]+ [\w.+]+)*\n", result.stdout)
    matters = {"lt-train": "torch", "lt-preprocess": "numba", "lt-convert": "numpy", "lt-monitor": "matplotlib"}[tool]
    assert f", {matters} {metadata.version(matters)}" in result.stdout


@pytest.mark.parametrize("tool", TOOLS)
def test_help_and_version_import_nothing_heavy(tool: str) -> None:
    """Heavy is what costs more than click: with torch alone, help would take seconds."""
    code = f"""
import sys
from {tool.replace("-", "_")}.cli import main
for option in ("-h", "--help", "--version"):
    sys.argv = [{tool!r}, option]
    try:
        main()
    except SystemExit as end:
        assert not end.code
print(*sys.modules, file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0
    imported = {name.partition(".")[0] for name in result.stderr.split()}
    assert "click" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize("tool", TOOLS)
def test_help_says_how_the_environment_sets_options(tool: str) -> None:
    for command, page in help_pages(tool).items():
        if not options(page):
            continue
        rule = re.search(r"too, where the command line does not: (\w+) is (--[\w-]+),", " ".join(page.split()))
        assert rule, page
        # A command that takes the options of a run takes its variables too.
        prefixes = ["_".join(words) for words in ([tool], [tool, *command])]
        names = [f"{prefix}_{rule[2].removeprefix('--')}".upper().replace("-", "_") for prefix in prefixes]
        assert rule[1] in names


def test_variables_with_names_of_their_own_are_shown() -> None:
    page = " ".join(help_pages("lt-train")[("render", "k8s")].split())
    assert "[env var: LT_TRAIN_IMAGE, IMAGE_URI]" in page
    assert "LT_TRAIN_SEQ_LENGTH" not in page


def test_short_help_fits_a_screen() -> None:
    result = run("lt-train", "-h", COLUMNS="80")
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert 40 < len(lines) <= 60 and max(map(len, lines)) <= 80
    assert lines.index("Commands:") < lines.index("Options that most runs need:")
    shown = re.findall(r"^  (--[\w-]+)(?: [A-Z]+)?  ", result.stdout, re.MULTILINE)
    assert 25 <= len(shown) <= 35
    whole = run("lt-train", "--help", COLUMNS="80").stdout
    assert all(f"  {option}" in whole for option in shown)
    assert len(whole.splitlines()) > 300
    assert "lt-train --help shows all options" in result.stdout


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("tool", TOOLS)
def test_help_cuts_no_text(tool: str, columns: int) -> None:
    for option in ("-h", "--help"):
        page = run(tool, option, COLUMNS=str(columns)).stdout
        assert not re.search(r"[a-z,] ?\.\.\.$", page.partition("Usage: ")[2].partition("\n\n")[2], re.MULTILINE), page
        # A list of choices is never broken, and lines of more than 120 characters are hard to read.
        lines = [line for line in page.partition("Usage: ")[2].splitlines() if not line.startswith("  -")]
        assert max(map(len, lines)) <= min(columns, 120)
        if columns == 200:
            assert max(map(len, lines)) > 80


@pytest.mark.parametrize("tool", TOOLS)
def test_an_unknown_option_is_a_usage_error_of_one_line(tool: str) -> None:
    for command in help_pages(tool):
        result = run(tool, *command, "--no-such-option")
        assert (result.returncode, result.stdout) == (2, "")
        error, hint = result.stderr.splitlines()
        assert error.startswith(f"{tool}: error: No such option")
        assert hint == f"hint: see {' '.join([tool, *command])} --help"


@pytest.mark.parametrize("tool", TOOLS)
def test_no_arguments_are_a_usage_error_and_not_a_wait(tool: str) -> None:
    result = start(tool)
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 2


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of the commands, as the documentation site has them."""
    build = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, ROOT / "docs/generate.py", build], check=True, capture_output=True)
    return build / "pages/reference/commands"


@pytest.mark.parametrize("tool", TOOLS)
def test_the_reference_names_every_option(tool: str, reference: Path) -> None:
    pages = "".join(page.read_text() for page in reference.glob(f"{tool}*.md"))
    documented = set(re.findall(r"(?<!\S)`?(--?[a-z][\w-]*)", pages))
    for page in help_pages(tool).values():
        missing = [names for names in options(page) if not documented.intersection(names.split(", "))]
        assert missing == []


def guides_of(tool: str) -> list[Path]:
    """Those whose tables list options of this tool alone."""
    subjects = {
        "lt-preprocess": ["data", "tokenizers", "datasets"],
        "lt-train": ["training", "models", "parallelism", "precision", "launching", "preflight", "checkpoints", "reports"],
        "lt-convert": ["conversion"],
        "lt-monitor": ["monitoring", "logs", "alerts", "metrics"],
    }
    return [ROOT / f"docs/guides/{subject}.md" for subject in subjects.get(tool, ())]


@pytest.mark.parametrize("tool", TOOLS)
def test_the_manual_page_names_no_option_that_is_gone(tool: str) -> None:
    """Only lines that call the tool or list an option are looked at: text may name the options of others."""
    pages = (ROOT / "tools" / tool.removeprefix("lt-") / "README.md", *guides_of(tool))
    manual = "".join(page.read_text() for page in pages)
    calls = [part for line in manual.splitlines() if line.startswith("    ") for part in line.split("|") if f"{tool} " in part]
    listed = re.findall(r"^\|? *`(?:-\w, )?(--[a-z][\w-]*)", manual, re.MULTILINE)
    called = [option for call in calls for option in re.findall(r"(?<=\s)--[a-z][\w-]*", call.partition(f"{tool} ")[2])]
    options = {option for page in help_pages(tool).values() for option in re.findall(r"--[a-z][\w-]*", page)}
    # Options without effect, for Megatron's command lines, are taken, but no help has them.
    assert [option for option in {*listed, *called} - options if "No such option" in run(tool, option).stderr] == []


@pytest.mark.parametrize(
    "page",
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("tools/*/*.md"),
        *ROOT.glob("shared/*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("tests/**/*.md"),
    ],
)
def test_relative_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize(
    ("tool", "word", "command"),
    [
        ("lt-preprocess", "inf", "info"),
        ("lt-convert", "verfy", "verify"),
        ("lt-train", "prefligth", "preflight"),
        ("lt-train", "pln", "plan"),
    ],
)
def test_a_misspelt_command_is_answered_with_the_nearest(tool: str, word: str, command: str) -> None:
    result = run(tool, word, "x")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"{tool}: error: {word}: no such file, and no such command\nhint: did you mean {command}?\n"


@pytest.mark.parametrize("tool", ["lt-preprocess", "lt-convert"])
def test_a_file_may_be_called_nearly_like_a_command(tool: str, tmp_path: Path) -> None:
    (tmp_path / "verfy").touch()
    result = start(tool, "verfy", cwd=tmp_path)
    assert "Missing option" in result.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lt-train --model llama3.1-", {"llama3.1-8b", "llama3.1-70b", "llama3.1-405b", "llama3.1-"}),
        ("lt-train --model ./", {"./"}),
        ("lt-train pl", {"plan", "pl"}),
        ("lt-train plan --gp", {"--gpu", "--gpus-per-node"}),
        ("lt-train plan --gpu h1", {"h100-80gb"}),
        ("lt-train render sl", {"slurm"}),
        ("lt-train render slurm --job", {"--job-name"}),
        ("lt-train render slurm --weight-decay-in", {"--weight-decay-incr-style"}),
        ("lt-train render k8s --save x --model llama3.1-4", {"llama3.1-405b", "llama3.1-4"}),
        ("lt-train render k8s --save x --model", {"--model"}),
        ("lt-train help parallelis", {"parallelism"}),
        ("lt-train help weight-decay-in", {"weight-decay-incr-style"}),
        ("lt-train data/web plan --weight-decay-in", {"--weight-decay-incr-style"}),
        ("lt-preprocess inf", {"info", "inf"}),
        ("lt-preprocess merge --out", {"--output-prefix"}),
        ("lt-convert inspect --js", {"--json"}),
        ("lt-convert run --to mega", {"megatron-dist", "megatron-hybrid", "megatron-legacy"}),
        ("lt-monitor su", {"summarize"}),
        ("lt-monitor plot --model llama3.1-4", {"llama3.1-405b"}),
        ("lt-monitor summarize --gpu h10", {"H100"}),
    ],
)
def test_the_shell_completes(line: str, expected: set[str]) -> None:
    """As the script that `_LT_TRAIN_COMPLETE=bash_source lt-train` prints asks for it."""
    tool = line.partition(" ")[0]
    variable = f"_{tool.upper().replace('-', '_')}_COMPLETE"
    assert f"{variable}=bash_complete" in run(tool, **{variable: "bash_source"}).stdout
    result = run(tool, COMP_WORDS=line, COMP_CWORD=str(line.count(" ")), **{variable: "bash_complete"})
    assert (result.returncode, result.stderr) == (0, "")
    assert {completion.partition(",")[2] for completion in result.stdout.splitlines()} == expected
