"""Shorten lists of tensor names in messages: a model has thousands of names, and most differ in a number alone."""

import re
from collections.abc import Iterable

_FIRST_NUMBER = re.compile(r"(.*?\.)(\d+)(\..*)")
_EXPERT_NUMBER = re.compile(r"(.*experts\.(?:.*\.(?:weight|bias))?)(\d+)((?:\..*)?)")


def abbreviated(names: Iterable[str]) -> str:
    """All names, with those that differ only in the numbers of layer and expert written as one: `layers.{0-3,7}.weight`."""
    return ", ".join(_grouped(_EXPERT_NUMBER, _grouped(_FIRST_NUMBER, names)))


def _grouped(pattern: re.Pattern[str], names: Iterable[str]) -> list[str]:
    """`names`, with those that differ only in the number of the pattern's second group written as one."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = pattern.fullmatch(name)
        numbers.setdefault((match[1], match[3]) if match else (name, ""), []).extend([int(match[2])] if match else [])
    return [f"{start}{_ranges(values) if values else ''}{end}" for (start, end), values in numbers.items()]


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return text if len(numbers) == 1 else f"{{{text}}}"
