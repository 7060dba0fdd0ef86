"""A command that a script may run."""

import dataclasses
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class ShellCommand:
    """Its words, variables replaced where they are known, and the line on which it begins.

    `conditional` are the variables whose value depends on a condition, with the words that they may have; `causes` the variables
    that decide it, `around` those that decide whether the command is run. `sourced` are the files from which the script has
    variables. Of one with `is_text` the script only writes the command, into a here-document.
    """

    words: list[str]
    conditional: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    line: int = 0
    causes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    sourced: tuple[str, ...] = ()
    around: tuple[str, ...] = ()
    is_text: bool = False
