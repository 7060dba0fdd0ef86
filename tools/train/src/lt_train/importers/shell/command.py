"""A command that a script may run."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class ShellCommand:
    """A command: its words with known variables replaced, and its first line.

    `conditional` are the variables whose value depends on a condition, with the words that they may have; `causes` the variables
    in that condition, `around` the variables that decide whether the command is run. `sourced` are the files that set variables
    of the script. With `is_text` the script only writes the command into a here-document.
    """

    words: list[str]
    conditional: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    line: int = 0
    causes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    sourced: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    is_text: bool = False
