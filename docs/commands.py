"""Every lt command with its options, from the click objects that run: the source of the reference and of the man pages."""

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import click

from lt_shared import console

# A tool's command-line module, its command without a name, and the group of its named commands.
ENTRIES = {
    "lt-preprocess": (("lt_preprocess.cli.tokenize", "command"), ("lt_preprocess.cli.datasets", "commands")),
    "lt-train": (("lt_train.cli", "command"), ("lt_train.cli", "commands")),
    "lt-convert": (("lt_convert.cli", "command"), ("lt_convert.cli", "commands")),
    "lt-monitor": (("lt_monitor.cli", "command"), ("lt_monitor.cli", "command")),
}
WIDTH_CHARACTERS = 100


@dataclass(frozen=True)
class Option:
    spelling: str
    """Names and what it takes: `-o, --output PREFIX`."""
    help: str


@dataclass(frozen=True)
class CommandPage:
    """The content of a command's page."""

    name: str
    usage: str
    description: str
    examples: str
    sections: dict[str, list[Option]]
    commands: tuple[str, ...]
    environment: str

    @property
    def file_name(self) -> str:
        return self.name.replace(" ", "-")

    @property
    def summary(self) -> str:
        return self.description.partition("\n\n")[0].replace("\n", " ")


def pages() -> Iterator[CommandPage]:
    """Yield the commands of every tool; a group comes before its commands."""
    for tool, ((module, name), (group_module, group_name)) in ENTRIES.items():
        unnamed = getattr(importlib.import_module(module), name)
        group = getattr(importlib.import_module(group_module), group_name)
        if unnamed is not group:
            context = new_context(group, None, tool)
            yield page(new_context(unnamed, None, tool), tuple(f"{tool} {one}" for one in group.list_commands(context)))
            yield from below(context)
        else:
            yield from tree(new_context(group, None, tool))


def tree(context: click.Context) -> Iterator[CommandPage]:
    group = context.command
    names = group.list_commands(context) if isinstance(group, click.Group) else []
    yield page(context, tuple(f"{context.command_path} {name}" for name in names))
    yield from below(context)


def below(context: click.Context) -> Iterator[CommandPage]:
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from tree(new_context(command, context, name))


def new_context(command: click.Command, parent: click.Context | None, name: str) -> click.Context:
    # A command below takes the prefix of its own settings, else of its parent.
    prefix = {"auto_envvar_prefix": name.upper().replace("-", "_")} if parent is None else {}
    # Parsing names the variables of the options.
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, **prefix)
    context.max_content_width = context.terminal_width = WIDTH_CHARACTERS
    return context


def page(context: click.Context, commands: tuple[str, ...]) -> CommandPage:
    help_text = context.get_help()
    rule = re.search(r"^The environment sets options.*", help_text, re.MULTILINE | re.DOTALL)
    # The list of commands may follow the rule, and its lines may end after a hyphen.
    environment = " ".join(re.sub(r"-\n", "-", rule[0].partition("\n\n")[0]).split()) if rule else ""
    return CommandPage(
        name=context.command_path,
        usage=" ".join(context.get_usage().removeprefix("Usage:").split()),
        description=re.sub(r"[ \t]*\n[ \t]*", "\n", (context.command.help or "").replace("\b", "")).strip(),
        examples=getattr(context.command, "examples", "").strip(),
        sections={
            title: [option_of(context, option) for option in options]
            for title, options in console.option_sections(context).items()
        },
        commands=commands,
        environment=environment,
    )


def option_of(context: click.Context, option: click.Option) -> Option:
    record = option.get_help_record(context)
    assert record is not None
    return Option(record[0], " ".join(record[1].split()))
