"""A tool whose work has no name: `lt-convert RUN --to hf` converts, `lt-convert verify` is one of its named commands.

The first word decides, also for the shell's completion of a command line that is still being typed.
"""

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from lt_shared.console.commands import Command, names_and_files
from lt_shared.console.errors import UsageError

VERBOSITY = ("-q", "--quiet", "-v", "--verbose")


class Operands(click.Argument):
    """The files that a command works on; the first word may be the name of a command instead."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        names = ctx.command.names(ctx) if isinstance(ctx.command, DefaultCommand) and _is_first_word(ctx) else []
        return names_and_files(names, incomplete)


def _is_first_word(ctx: click.Context) -> bool:
    """Whether no option and no operand has been typed before the word that is completed."""
    return all(ctx.get_parameter_source(name) != click.core.ParameterSource.COMMANDLINE for name in ctx.params)


class DefaultCommand(Command):
    """The command without a name.

    Its help lists the `named` commands; a first word that resembles a command's name is refused.
    """

    def __init__(self, *args: Any, named: Callable[[], click.Group], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.named = named

    def names(self, ctx: click.Context) -> list[str]:
        return self.named().list_commands(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing and args and not self.is_operand(args[0]):
            check_name(args[0], self.names(ctx))
        return super().parse_args(ctx, args)

    def is_operand(self, word: str) -> bool:
        """Whether the word names something that is there."""
        return os.path.lexists(word)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        group = self.named()
        group.format_commands(click.Context(group, info_name=ctx.info_name), formatter)

    def chosen(self, completing: str) -> click.Command:
        """Return the group of named commands if the first word is a command's name, else this command.

        The shell sets the variable `completing` while it completes a command line; COMP_WORDS then has the line's words. If -q
        or -v comes before the name, the name is moved to the front of sys.argv: every command takes both.
        """
        is_typed = completing in os.environ
        words = os.environ.get("COMP_WORDS", "").split() if is_typed else sys.argv
        first = next((number for number, word in enumerate(words) if number and word not in VERBOSITY), len(words))
        group = self.named()
        if first == len(words) or words[first] not in group.list_commands(click.Context(group)):
            return self
        if not is_typed:
            sys.argv[1 : first + 1] = [words[first], *words[1:first]]
        return group


def check_name(word: str, names: Iterable[str]) -> None:
    """Raises UsageError for a word that is nearly the name of a command."""
    if not word.isalpha():
        return
    # Most words are names of files.
    from difflib import get_close_matches

    nearest = get_close_matches(word, list(names), n=1, cutoff=0.7)
    if nearest:
        raise UsageError(f"{word}: no such file, and no such command", f"did you mean {nearest[0]}?")
