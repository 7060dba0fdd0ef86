"""Whether a branch of a shell script is taken, where its test needs nothing but values that are known."""

import dataclasses
import enum
import operator
from collections.abc import Callable, Sequence

OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
EQUAL = {"=": True, "==": True, "!=": False}
BRACKETS = {"[": "]", "[[": "]]"}


class Branch(enum.Enum):
    """UNKNOWN is one that only a run of the script decides."""

    TAKEN = 1
    UNKNOWN = 2
    LEFT_OUT = 3


def decide(words: Sequence[str]) -> bool | None:
    """`[ $A -le 4 ] || [ -z "$B" ]`, variables replaced, as True or False; None where it needs an unknown value, or a command."""
    signs = [index for index, word in enumerate(words) if word in ("||", "&&")]
    if signs:
        sides = decide(words[: signs[-1]]), decide(words[signs[-1] + 1 :])
        settles = words[signs[-1]] == "||"
        if settles in sides:
            return settles
        return None if None in sides else not settles
    if words[:1] == ["!"]:
        decided = decide(words[1:])
        return None if decided is None else not decided
    if not words or words[-1].rstrip(";") != BRACKETS.get(words[0]) or any("$" in word or "`" in word for word in words):
        return None
    test = words[1:-1]
    if len(test) == 2 and test[0] in ("-z", "-n"):
        return (test[1] == "") == (test[0] == "-z")
    if len(test) != 3:
        return None
    left, sign, right = test
    if sign in EQUAL and not any(character in right for character in "*?["):
        return (left == right) is EQUAL[sign]
    if sign in OPERATORS and left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
        return OPERATORS[sign](int(left), int(right))
    return None


@dataclasses.dataclass
class _Chain:
    """Of one `if`: the branch that is read now, and whether one before it was, or may have been, taken."""

    now: Branch
    was_taken: bool = False
    may_be_taken: bool = False


class Branches:
    """The conditions around a statement, as `if`, `elif`, `else` and `fi` open, change and close them."""

    def __init__(self) -> None:
        self._open: list[_Chain] = []

    @property
    def now(self) -> Branch:
        states = [chain.now for chain in self._open]
        return next((state for state in (Branch.LEFT_OUT, Branch.UNKNOWN) if state in states), Branch.TAKEN)

    def open(self, is_taken: bool | None) -> None:
        self._open.append(_Chain(_branch(is_taken)))

    def otherwise(self, is_taken: bool | None = True) -> None:
        """`elif`, or `else`."""
        if self._open:
            chain = self._open[-1]
            chain.was_taken |= chain.now is Branch.TAKEN
            chain.may_be_taken |= chain.now is Branch.UNKNOWN
            wanted = False if chain.was_taken else is_taken
            chain.now = _branch(None if wanted and chain.may_be_taken else wanted)

    def close(self) -> None:
        if self._open:
            self._open.pop()


def _branch(is_taken: bool | None) -> Branch:
    return Branch.UNKNOWN if is_taken is None else Branch.TAKEN if is_taken else Branch.LEFT_OUT
