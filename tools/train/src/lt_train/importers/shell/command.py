"""A command that a script may run."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class ShellCommand:
    """The words of a command with known variables replaced, and the line where the command begins.

    `conditional` maps a variable whose value depends on a condition to the words that it may have, and `causes` maps it to the
    variables in that condition. `guards` are the variables that decide whether the command runs. `sourced` lists the files that
    the script sources. `is_text` marks a command that the script writes into a here-document instead of running it.
    """

    words: list[str]
    conditional: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    line: int = 0
    causes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    sourced: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    is_text: bool = False
