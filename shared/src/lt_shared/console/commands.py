"""click's commands and groups, with help that begins with examples and shows environment variables."""

import contextlib
import math
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from lt_shared.console.errors import UsageError


class Command(click.Command):
    """A click command whose help begins with examples and shows the environment variable of every option."""

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any):
        super().__init__(*args, **_with_context_settings(kwargs))
        self.examples = examples
        _show_environment_variables(self)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class FiniteRange(click.FloatRange):
    """A range of numbers without infinity and NaN, which click's own lets through."""

    name = "float range"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        number = super().convert(value, parameter, context)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", parameter, context)
        return number


def section(title: str, *options: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[Any], Any]:
    """A decorator that adds click `options`, in their order, which `Command` shows under `title` in its help."""

    def add(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
            function.__click_params__[-1].section = title
        return function

    return add


def check_command(words: Sequence[str], names: Iterable[str]) -> None:
    """Raises UsageError when the first of a tool's words, which is no file here, is nearly the name of one of its commands."""
    word = words[0] if words else ""
    if not word.isalpha() or os.path.lexists(word):
        return
    # Most words are names of files.
    from difflib import get_close_matches

    nearest = get_close_matches(word, list(names), n=1, cutoff=0.7)
    if nearest:
        raise UsageError(f"{word}: no such file, and no such command", f"did you mean {nearest[0]}?")


def version_option(tool: str, version: str, *distributions: str) -> Callable[[Any], Any]:
    """`--version`: a line for the tool, and one for Python and the installed ones of the `distributions` that matter to it."""

    def show(context: click.Context, option: click.Parameter, is_given: bool) -> None:
        if is_given and not context.resilient_parsing:
            found = {"Python": platform.python_version()} | installed_versions(distributions)
            click.echo(f"{tool} {version}\n{', '.join(f'{name} {number}' for name, number in found.items())}")
            context.exit()

    return click.option(
        "--version", is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show the version and exit."
    )


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """The versions of those `distributions` that are installed, in their order."""
    # 20 ms, more than all of --help.
    from importlib import metadata

    found = {}
    for name in distributions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


class Group(click.Group):
    """A click group with the same help as `Command`; its subcommands are `Command`s."""

    command_class = Command

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any):
        # Without a subcommand click would pass its whole help off as the error message.
        super().__init__(*args, **_with_context_settings(kwargs) | {"no_args_is_help": False})
        self.examples = examples
        _show_environment_variables(self)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)
        super().format_help(ctx, formatter)


def _with_context_settings(arguments: dict[str, Any]) -> dict[str, Any]:
    defaults = {"help_option_names": ["-h", "--help"], "show_default": True}
    return arguments | {"context_settings": defaults | (arguments.get("context_settings") or {})}


def _show_environment_variables(command: click.Command) -> None:
    for parameter in command.params:
        if isinstance(parameter, click.Option) and (parameter.expose_value or not parameter.is_flag):
            parameter.show_envvar = True


def _write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    if examples:
        formatter.write("Examples:\n\n")
        for line in examples.strip().splitlines():
            formatter.write(f"  {line}\n")
        formatter.write("\n")
