"""Decide shell tests that depend on known values only."""

import fnmatch
import operator
from collections.abc import Callable, Sequence

from lt_train.importers.shell.unknown import is_known

INTEGERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
TEXTS: dict[str, Callable[[str, str], bool]] = {"<": operator.lt, ">": operator.gt}


def decide(words: Sequence[str], is_extended: bool) -> bool | None:
    """Return the result of the test `words`, or None if it depends on an unknown value.

    `is_extended` selects `[[ ... ]]` with patterns, && and ||; otherwise the words are from `[ ... ]`.
    """
    for sign, settles in (("||" if is_extended else "-o", True), ("&&" if is_extended else "-a", False)):
        place = _outside(words, sign)
        if place is not None:
            sides = decide(words[:place], is_extended), decide(words[place + 1 :], is_extended)
            return settles if settles in sides else None if None in sides else not settles
    if words[:1] == ["!"] and len(words) > 1:
        inner = decide(words[1:], is_extended)
        return None if inner is None else not inner
    if len(words) > 2 and words[0] == "(" and words[-1] == ")":
        return decide(words[1:-1], is_extended)
    return _primary(words, is_extended) if all(map(is_known, words)) else None


def _outside(words: Sequence[str], sign: str) -> int | None:
    """Return the last index of `sign` outside of parentheses."""
    depth = 0
    for place in range(len(words) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(words[place], 0)
        if words[place] == sign and depth == 0 and place < len(words) - 1:
            return place
    return None


def _primary(words: Sequence[str], is_extended: bool) -> bool | None:
    if len(words) < 2:
        return bool(words and words[0])
    if len(words) == 2:
        return {"-z": not words[1], "-n": bool(words[1])}.get(words[0])
    if len(words) != 3:
        return None
    left, sign, right = words
    if sign in ("=", "==", "!="):
        is_equal = fnmatch.fnmatchcase(left, right) if is_extended else left == right
        return is_equal is (sign != "!=")
    if sign in TEXTS:
        return TEXTS[sign](left, right)
    if sign in INTEGERS and all(side.strip().lstrip("+-").isdigit() for side in (left, right)):
        return INTEGERS[sign](int(left), int(right))
    return None
