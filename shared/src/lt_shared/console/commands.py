"""click's commands and groups, with help that begins with examples, and a variable in the environment for every option.

A variable is called like its option: LT_TRAIN_SEQ_LENGTH sets lt-train's --seq-length. So the help has this rule once, and
names only the variables that break it, which other tools have given their names.
"""

import math
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click
from click.types import StringParamType

from lt_shared import installed_versions, version_of
from lt_shared.console.errors import UsageError
from lt_shared.console.output import Verbosity, choose_verbosity

# Help fills the terminal up to this width. click's limit is 80; lines longer than this are hard to read.
_MAX_WIDTH_CHARACTERS = 120
# click cuts a command's first sentence to 45 characters unless it is called with a limit.
_NO_LIMIT_CHARACTERS = 10_000


class _Explained(click.Command):
    """What `Command` and `Group` have in common."""

    examples = ""
    # What to use instead of options that this command never had, by their names in other programs, without leading dashes.
    foreign_options: Mapping[str, str] = MappingProxyType({})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _name_environment_variables(self, ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            remedy = self.foreign_options.get(error.option_name.lstrip("-").replace("_", "-"))
            if remedy is None:
                raise
            raise UsageError(f"{ctx.command_path} has no option {error.option_name}", remedy) from None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_examples(formatter, self.examples)
        super().format_help(ctx, formatter)


class Command(_Explained):
    """A click command whose help begins with examples and ends with its environment variables.

    With `common`, the parameters that most calls need, --help shows all options and -h those alone.
    """

    def __init__(self, *args: Any, examples: str = "", common: Sequence[str] = (), **kwargs: Any):
        super().__init__(*args, **_with_context_settings(kwargs, ["--help"] if common else ["-h", "--help"]))
        self.examples = examples
        self.common = common
        self.params += verbosity_options()
        if common:
            self.params.append(_short_help_option())
        _show_environment_variables(self)
        _offer_files(self)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, options in option_sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])
        _write_environment_rule(self, ctx, formatter)

    def format_short_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what -h shows: the usage, what follows the options in the long help, the `common` options in a line each."""
        self.format_usage(ctx, formatter)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(self.get_short_help_str(_NO_LIMIT_CHARACTERS))
        self.format_epilog(ctx, formatter)
        with formatter.section("Options that most runs need"):
            _write_lines(formatter, [(_spelled(one), one.help or "") for one in map(self._option, self.common)])

    def _option(self, name: str) -> click.Option:
        return next(one for one in self.params if isinstance(one, click.Option) and one.name == name)


def option_sections(ctx: click.Context) -> dict[str, list[click.Option]]:
    """The options of a command that its help shows, by the titles of their sections, in their order."""
    sections: dict[str, list[click.Option]] = {}
    for parameter in ctx.command.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            sections.setdefault(getattr(parameter, "section", "Options"), []).append(parameter)
    return sections


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


def version_option(tool: str, *distributions: str) -> Callable[[Any], Any]:
    """`--version`: a line for the tool, and one for Python and the installed ones of the `distributions` that matter to it."""

    def show(context: click.Context, option: click.Parameter, is_given: bool) -> None:
        if is_given and not context.resilient_parsing:
            versions = {"Python": platform.python_version()} | installed_versions(distributions)
            click.echo(f"{tool} {version_of(tool)}\n{', '.join(f'{name} {number}' for name, number in versions.items())}")
            context.exit()

    return click.option(
        "--version", is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show the version and exit."
    )


class Group(_Explained, click.Group):
    """A click group with the same help as `Command`; its subcommands are `Command`s."""

    command_class = Command

    def __init__(self, *args: Any, examples: str = "", **kwargs: Any):
        # Without a subcommand click would pass its whole help off as the error message.
        super().__init__(*args, **_with_context_settings(kwargs, ["-h", "--help"]) | {"no_args_is_help": False})
        self.examples = examples
        self.params += verbosity_options()
        _show_environment_variables(self)
        _offer_files(self)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        _write_environment_rule(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with its first sentence, on several lines if need be: click would cut it with "..."."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [
            (name, command.get_short_help_str(_NO_LIMIT_CHARACTERS))
            for name, command in commands.items()
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def names_and_files(names: Iterable[str], incomplete: str) -> list[Any]:
    """Return completions of `incomplete`: files, and the `names` that begin with it.

    Files come first: at their item, click's script for bash forgets the items before it.
    """
    from click.shell_completion import CompletionItem

    items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *items]


class _TextOrPath(StringParamType):
    """A text for which shells offer files: click's offers nothing, and most texts on a command line are paths."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        return names_and_files((), incomplete)


def _offer_files(command: click.Command) -> None:
    """Let shells complete files for every parameter of `command` that is a text without names of its own."""
    for parameter in command.params:
        if type(parameter.type) is StringParamType:
            parameter.type = _TextOrPath()


def verbosity_options() -> list[click.Parameter]:
    """-q and -v, which every command has."""

    def option(*names: str, verbosity: Verbosity, help: str) -> click.Option:
        def choose(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
            if is_given and not context.resilient_parsing:
                choose_verbosity(verbosity)

        return click.Option(names, is_flag=True, expose_value=False, is_eager=True, callback=choose, help=help)

    return [
        option("-q", "--quiet", verbosity=Verbosity.QUIET, help="Print warnings and errors only."),
        option("-v", "--verbose", verbosity=Verbosity.VERBOSE, help="Also print decisions, time and memory."),
    ]


def _short_help_option() -> click.Option:
    def show(context: click.Context, parameter: click.Parameter, is_given: bool) -> None:
        if is_given and not context.resilient_parsing:
            formatter = context.make_formatter()
            context.command.format_short_help(context, formatter)  # type: ignore[attr-defined]
            click.echo(formatter.getvalue().rstrip("\n"))
            context.exit()

    return click.Option(["-h"], is_flag=True, expose_value=False, is_eager=True, callback=show, help="Show the common options.")


def _with_context_settings(arguments: dict[str, Any], help_names: list[str]) -> dict[str, Any]:
    defaults = {"help_option_names": help_names, "show_default": True, "max_content_width": _MAX_WIDTH_CHARACTERS}
    return arguments | {"context_settings": defaults | (arguments.get("context_settings") or {})}


def _options_with_variables(command: click.Command) -> Iterator[click.Option]:
    for one in command.params:
        if isinstance(one, click.Option) and (one.expose_value or not one.is_flag) and not one.hidden:
            yield one


def _show_environment_variables(command: click.Command) -> None:
    """Only those that are not called like their option. LT_TRAIN_VERSION, which an image may have, is no --version."""
    for option in _options_with_variables(command):
        option.show_envvar = option.envvar is not None
    for one in command.params:
        if isinstance(one, click.Option) and one.is_flag and not one.expose_value:
            one.allow_from_autoenv = False


def _name_environment_variables(command: click.Command, context: click.Context) -> None:
    """Anew for each context: a command of lt-train has variables, the same called from a notebook has none."""
    prefix = context.auto_envvar_prefix
    for option in _options_with_variables(command):
        if not option.show_envvar:
            option.envvar = [
                f"{prefix}_{spelling.removeprefix('--').replace('-', '_').upper()}"
                for spelling in option.opts
                if prefix and spelling.startswith("--")
            ]
            option.allow_from_autoenv = False


def _long_name(option: click.Option) -> str:
    return next(spelling for spelling in option.opts if spelling.startswith("--")).removeprefix("--")


def _write_environment_rule(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    examples = [one for one in _options_with_variables(command) if one.envvar and not one.show_envvar]
    if examples and examples[0].envvar:
        formatter.write_paragraph()
        formatter.write_text(
            f"The environment sets options, too, where the command line does not: {examples[0].envvar[0]} is"
            f" --{_long_name(examples[0])}, and so on."
        )


def _spelled(option: click.Option) -> str:
    """Return an option's first long name with a short placeholder of its value."""
    if option.is_flag:
        return f"--{_long_name(option)}"
    is_number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    is_choice = isinstance(option.type, click.Choice)
    value_name = option.metavar or ("N" if is_number else "NAME" if is_choice else option.type.name.upper())
    return f"--{_long_name(option)} {value_name}"


def _write_lines(formatter: click.HelpFormatter, rows: Sequence[tuple[str, str]]) -> None:
    """Write a definition list, each text shortened to one line if one of its clauses fits a line."""
    column = max(len(name) for name, _ in rows) + 2
    width = formatter.width - formatter.current_indent - column
    formatter.write_dl([(name, _whole_clauses(text, width)) for name, text in rows], col_max=column)


def _whole_clauses(text: str, width: int) -> str:
    """Return as many clauses of `text` as fit into `width` characters, at least the first, which then takes several lines."""
    clause_ends = [match.start() for match in re.finditer(r"[;:.](?= |$)", text)]
    fitting = [end for end in clause_ends if end < width]
    end = fitting[-1] if fitting else next(iter(clause_ends), len(text))
    return f"{text[:end]}."


def _write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    if examples:
        formatter.write("Examples:\n\n")
        for line in examples.strip().splitlines():
            formatter.write(f"  {line}\n")
        formatter.write("\n")
