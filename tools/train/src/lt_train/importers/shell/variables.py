"""The variables of an interpreted script, and how branches of an undecided condition are merged.

Each branch runs on a copy of the variables. A variable whose value differs between branches becomes unknown, and `choices`
keeps the words that it may have. The environment is ignored, so that a script translates alike on every machine.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from lt_train.config import credentials
from lt_train.importers.shell.unknown import CLOSING, OPENING, is_known, is_nameless, unknown, unknown_variables

# Variables that contain themselves grow without end.
LONGEST_VALUE = 100_000
MOST_CHOICES = 10_000
Value = str | list[str]


def words_in(value: Value) -> list[str]:
    """Split the value of an unquoted variable into words. An unknown part is never split, even if it contains spaces."""
    if isinstance(value, list):
        return [word for entry in value for word in words_in(entry)]
    words: list[str] = []
    is_open = False
    for piece in split_outside(value):
        if piece.isspace():
            is_open = False
        elif is_open:
            words[-1] += piece
        else:
            words.append(piece)
            is_open = True
    return words


def split_outside(value: str) -> list[str]:
    """Split a text into alternating runs of blanks and non-blanks. An unknown part counts as non-blank."""
    stretches = []
    is_inside = False

    def kind(character: str) -> bool:
        nonlocal is_inside
        is_inside = character == OPENING or (is_inside and character != CLOSING)
        return not is_inside and character in " \t\n"

    for _, characters in itertools.groupby(value, kind):
        stretches.append("".join(characters))
    return stretches


@dataclasses.dataclass
class Variables:
    """Values of a script's variables. Assignments do not change the names in `preset`.

    `choices` maps a variable to the words that it may have, `causes` to the variables that decide between them.
    """

    preset: frozenset[str]
    values: dict[str, Value]
    choices: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    causes: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    has_exited: bool = False

    @classmethod
    def from_presets(cls, presets: Mapping[str, str]) -> "Variables":
        return cls(frozenset(presets), dict(presets))

    def copy(self) -> "Variables":
        choices = {name: list(words) for name, words in self.choices.items()}
        return dataclasses.replace(self, values=dict(self.values), choices=choices, causes=dict(self.causes))

    def get(self, name: str) -> Value | None:
        if name.isdigit() and name not in self.preset:
            index = int(name) - 1
            return self.arguments[index] if 0 <= index < len(self.arguments) else None
        return self.values.get(name)

    def assign(self, name: str, value: Value) -> None:
        """Set a variable. A secret, the output of a command and a value over LONGEST_VALUE are replaced by `$name`."""
        if name in self.preset:
            return
        has_no_name = isinstance(value, str) and is_nameless(value)
        if has_no_name or credentials.is_secret(name) or sum(map(len, value)) > LONGEST_VALUE:
            value = unknown(f"${name}")
        self.values[name] = value
        self.choices.pop(name, None)
        self.causes.pop(name, None)

    def remove(self, name: str) -> None:
        if name not in self.preset:
            self.values.pop(name, None)

    def merge(self, branches: Sequence["Variables"], causes: Sequence[str]) -> None:
        """Merge the variables of `branches`; the script takes one branch. Branches that exit are ignored."""
        living = [branch for branch in branches if not branch.has_exited]
        if not living:
            self.has_exited = True
            return
        names = dict.fromkeys(name for branch in living for name in branch.values)
        self.has_exited, self.values = False, {}
        for branch in living:
            for name, words in branch.choices.items():
                self._choose(name, words, branch.causes.get(name, []))
        for name in names:
            values = [branch.values.get(name) for branch in living]
            if all(value == values[0] for value in values) and values[0] is not None:
                self.values[name] = values[0]
            else:
                self._differ(name, values, causes)
        self.arguments = living[0].arguments

    def _differ(self, name: str, values: Sequence[Value | None], causes: Sequence[str]) -> None:
        """Keep the words that all values begin with, because a condition often appends options to a list."""
        lists = [words_in(value) if value is not None else [] for value in values]
        shortest = min(lists, key=len)
        shared = shortest if shortest and all(words[: len(shortest)] == shortest for words in lists) else []
        marker = unknown(f"${name}")
        shared = [word for word in shared if word != marker]
        self._choose(name, [word for words in lists for word in words[len(shared) :] if word != marker], causes)
        if any(isinstance(value, list) for value in values):
            self.values[name] = [*shared, marker]
        else:
            self.values[name] = " ".join([*shared, marker])

    def _choose(self, name: str, words: Sequence[str], causes: Sequence[str]) -> None:
        choices = self.choices.setdefault(name, [])
        new_words = words[len(choices) :] if list(words[: len(choices)]) == choices else words
        choices.extend(new_words[: MOST_CHOICES - len(choices)])
        self.causes[name] = list(dict.fromkeys([*self.causes.get(name, []), *causes]))


def names_behind(words: Sequence[str]) -> list[str]:
    """List the variables that the unknown parts of `words` depend on."""
    return list(dict.fromkeys(name for word in words if not is_known(word) for name in unknown_variables(word)))
