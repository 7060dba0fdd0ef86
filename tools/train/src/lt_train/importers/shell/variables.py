"""The variables of a script, also if an unknown condition decides their values.

If a run may take either branch of a condition, each branch is followed on a copy, and a variable with two values is unknown: it
stands for itself, beside the words that it may have. The environment is not read: a script is translated alike everywhere.
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
    """Split an unquoted variable into words; an unknown part stays within one word, with its spaces."""
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
    """Blank and other stretches of a text in turn; a part that is not known counts as other."""
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
    """The variables; assignments do not change `given`.

    `choices` has a variable's possible words, `causes` what they depend on.
    """

    given: frozenset[str]
    values: dict[str, Value]
    choices: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    causes: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    is_left: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "Variables":
        return cls(frozenset(given), dict(given))

    def copy(self) -> "Variables":
        choices = {name: list(words) for name, words in self.choices.items()}
        return dataclasses.replace(self, values=dict(self.values), choices=choices, causes=dict(self.causes))

    def get(self, name: str) -> Value | None:
        if name.isdigit() and name not in self.given:
            index = int(name) - 1
            return self.arguments[index] if 0 <= index < len(self.arguments) else None
        return self.values.get(name)

    def assign(self, name: str, value: Value) -> None:
        """Assign a value. A secret and the output of a command stay behind the name of the variable."""
        if name in self.given:
            return
        has_no_name = isinstance(value, str) and is_nameless(value)
        if has_no_name or credentials.is_secret(name) or sum(map(len, value)) > LONGEST_VALUE:
            value = unknown(f"${name}")
        self.values[name] = value
        self.choices.pop(name, None)
        self.causes.pop(name, None)

    def remove(self, name: str) -> None:
        if name not in self.given:
            self.values.pop(name, None)

    def merge(self, branches: Sequence["Variables"], causes: Sequence[str]) -> None:
        """Merge the variables of `branches`, if a run takes exactly one branch."""
        living = [branch for branch in branches if not branch.is_left]
        if not living:
            self.is_left = True
            return
        names = dict.fromkeys(name for branch in living for name in branch.values)
        self.is_left, self.values = False, {}
        for branch in living:
            for name, words in branch.choices.items():
                self._choose(name, words, branch.causes.get(name, []))
        for name in names:
            found = [branch.values.get(name) for branch in living]
            if all(value == found[0] for value in found) and found[0] is not None:
                self.values[name] = found[0]
            else:
                self._differ(name, found, causes)
        self.arguments = living[0].arguments

    def _differ(self, name: str, found: Sequence[Value | None], causes: Sequence[str]) -> None:
        """What all values begin with is kept: a condition often adds words to others."""
        lists = [words_in(value) if value is not None else [] for value in found]
        shortest = min(lists, key=len)
        shared = shortest if shortest and all(words[: len(shortest)] == shortest for words in lists) else []
        marker = unknown(f"${name}")
        shared = [word for word in shared if word != marker]
        self._choose(name, [word for words in lists for word in words[len(shared) :] if word != marker], causes)
        if any(isinstance(value, list) for value in found):
            self.values[name] = [*shared, marker]
        else:
            self.values[name] = " ".join([*shared, marker])

    def _choose(self, name: str, words: Sequence[str], causes: Sequence[str]) -> None:
        known = self.choices.setdefault(name, [])
        more = words[len(known) :] if list(words[: len(known)]) == known else words
        known.extend(more[: MOST_CHOICES - len(known)])
        self.causes[name] = list(dict.fromkeys([*self.causes.get(name, []), *causes]))


def names_behind(words: Sequence[str]) -> list[str]:
    """Return the unknown variables in `words`."""
    return list(dict.fromkeys(name for word in words if not is_known(word) for name in unknown_variables(word)))
