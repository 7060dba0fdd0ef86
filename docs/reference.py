"""The pages of the reference, as Markdown, from the tables and classes that the tools themselves use."""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence

from commands import CommandPage
from links import ROOT

from lt_monitor.alerts import thresholds
from lt_monitor.events import records
from lt_shared import console
from lt_shared.models import presets

SHARED_CODES = re.compile(r"^\| exit codes \| (.*) \|$", re.MULTILINE)


def command(page: CommandPage) -> str:
    """Usage, description, examples and all options of a command."""
    parts = [f"# {page.name}", f"```text\n{page.usage}\n```", escaped(page.description)]
    if page.examples:
        parts.append(f"```sh\n{page.examples}\n```")
    if page.commands:
        rows = [f"- [{name}]({name.replace(' ', '-')}.md)" for name in page.commands]
        parts += ["Commands:", "\n".join(rows)]
    for title, options in page.sections.items():
        parts.append(f"## {title}")
        parts.append(table(("option", ""), [(f"`{cell(one.spelling)}`", escaped(cell(one.help))) for one in options]))
    if page.environment:
        parts.append(escaped(page.environment))
    return "\n\n".join(parts) + "\n"


def command_index(pages: Iterable[CommandPage]) -> str:
    rows = [(f"[{page.name}](commands/{page.file_name}.md)", escaped(cell(page.summary))) for page in pages]
    return f"# Commands\n\n{table(('command', ''), rows)}\n"


def exit_codes() -> str:
    """Return a table of the exit codes with their names, their meanings in README.md, and their errors' descriptions."""
    meanings = code_meanings()
    errors = {
        one.exit_code: " ".join((inspect.getdoc(one) or "").split())
        for one in vars(console).values()
        if inspect.isclass(one) and issubclass(one, console.ToolError) and one is not console.ToolError
    }
    rows = [(str(int(code)), f"`{code.name}`", meanings[code], errors.get(code, "")) for code in console.ExitCode]
    tools = [f"- [{tool}](../guides/exit-codes.md#{tool})" for tool in tool_names()]
    return "\n\n".join(
        [
            "# Exit codes",
            "An sbatch script requeues on 75 and stops on 78. `128+n` is a process that signal n ended.",
            table(("code", "name", "meaning", "of an error"), rows),
            "What each tool ends with, and when:",
            "\n".join(tools) + "\n",
        ]
    )


def code_meanings() -> dict[console.ExitCode, str]:
    """Return the meanings in README.md's table by exit code. Raises ValueError for a missing code."""
    found = SHARED_CODES.search((ROOT / "README.md").read_text())
    entries = dict(re.findall(r"(\d+(?:\+n)?) ([^,]+(?:\([^)]*\))?)", found[1])) if found else {}
    meanings = {}
    for code in console.ExitCode:
        # A pipe that nobody reads any more ends a process as the signal would.
        meaning = entries.get(str(int(code))) or (f"{entries['128+n']} (SIGPIPE)" if code == console.ExitCode.BROKEN_PIPE else "")
        if not meaning:
            raise ValueError(f"README.md does not say what exit code {code} means")
        meanings[code] = meaning
    return meanings


def tool_names() -> list[str]:
    return [f"lt-{path.parent.name}" for path in sorted(ROOT.glob("tools/*/pyproject.toml"))]


def environment(pages: Iterable[CommandPage]) -> str:
    rows = [(f"`{page.name}`", escaped(cell(page.environment))) for page in pages if page.environment]
    return "\n\n".join(
        [
            "# Environment",
            "A flag comes before a variable of the environment, and that before the default. `LT_DEBUG=1` shows the traceback"
            " of an error. The rule for each command, with one of its variables as the example:",
            table(("command", "rule"), rows) + "\n",
        ]
    )


def models() -> str:
    rows = [
        (
            f"`{one.name}`",
            f"{one.parameters() / 1e6:,.1f} M",
            *(f"{number:,}" for number in (one.num_layers, one.hidden_size, one.num_attention_heads, one.num_query_groups)),
            f"{one.num_experts:,}" if one.num_experts else "",
            *(f"{number:,}" for number in (one.max_position_embeddings, one.vocab_size)),
        )
        for one in presets.PRESETS.values()
    ]
    header = ("name", "parameters", "layers", "hidden", "heads", "KV heads", "experts", "positions", "vocabulary")
    return f"# Models\n\nWhat `--model` knows by name, as `lt-train models` lists it.\n\n{table(header, rows)}\n"


def events() -> str:
    """The names in lt-monitor's events. What each kind holds is in docs/guides/logs.md."""
    names = {
        "Faults": records.FAULTS,
        "Causes of a fault": records.CAUSES,
        "Severities of a fault": records.SEVERITIES,
        "Notes": records.NOTES,
        "Reasons of an end": records.END_REASONS,
    }
    sections = [f"## {title}\n\n{', '.join(f'`{name}`' for name in group)}" for title, group in names.items()]
    guide = "The kinds of events and their keys: [Logs and events](../guides/logs.md#kinds-of-events)."
    return "\n\n".join(["# Events of lt-monitor", guide, *sections]) + "\n"


def alert_rules() -> str:
    rows = [
        (f"`{rule}`", ", ".join(f"`{name} = {value:g}`" for name, value in values.items()))
        for rule, values in thresholds.DEFAULTS.items()
    ]
    return "\n\n".join(
        [
            "# Alert rules of lt-monitor",
            "When each fires: [Alerts](../guides/alerts.md#rules). A file for `--rules` changes these"
            f" thresholds, and of every rule {' and '.join(f'`{name}`' for name in thresholds.COMMON)}.",
            table(("rule", "thresholds and their defaults"), rows) + "\n",
        ]
    )


def files() -> str:
    """Where it is said what passes between the tools and what each one writes."""
    return (
        "# Manifest lines and files\n\n"
        "| what | where it is described |\n|---|---|\n"
        "| manifest lines, from tool to tool | [How it works](../how-it-works.md#manifest-lines) |\n"
        "| datasets, and the sidecar beside them | [Tokenizing](../guides/data.md#the-sidecar) |\n"
        "| checkpoints, log, metrics | [Checkpoints](../guides/checkpoints.md#the-files-of-a-run) |\n"
        "| the four checkpoint formats | [Converting checkpoints](../guides/conversion.md#output-files) |\n"
        "| events, state files | [Logs and events](../guides/logs.md#events-of-scrape) |\n"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cells)} |"

    return "\n".join([line(header), line(["---"] * len(header)), *map(line, rows)])


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def escaped(text: str) -> str:
    """`text` of a help page without what Markdown would take for markup, but for code in backticks."""
    parts = re.split(r"(`[^`\n]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*_\[])", r"\\\1", part) for part in parts)


def all_pages(pages: Sequence[CommandPage]) -> Iterator[tuple[str, str]]:
    """Every page of the reference: its path under docs/, and its text."""
    yield "docs/reference/commands.md", command_index(pages)
    for page in pages:
        yield f"docs/reference/commands/{page.file_name}.md", command(page)
    yield "docs/reference/exit-codes.md", exit_codes()
    yield "docs/reference/environment.md", environment(pages)
    yield "docs/reference/models.md", models()
    yield "docs/reference/files.md", files()
    yield "docs/reference/events.md", events()
    yield "docs/reference/alert-rules.md", alert_rules()
