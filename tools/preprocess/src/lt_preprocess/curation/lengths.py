"""Leave out documents that are too short or too long: `--keep-length words:50:100000`."""

import re
from typing import Literal, NamedTuple, Self, get_args

import numpy as np

from lt_preprocess.texts import Lengths, Texts
from lt_shared.console import UsageError

Unit = Literal["bytes", "characters", "words", "tokens"]
TOO_SHORT, TOO_LONG = "too_short", "too_long"
_PATTERN = re.compile(r"([a-z]+):(\d*):(\d*)")


class LengthRule(NamedTuple):
    """Documents of `least` to `most` units are kept; None is no limit."""

    unit: Unit
    least: int | None
    most: int | None

    @classmethod
    def parse(cls, rule: str) -> Self:
        """Raises UsageError if `rule` is not UNIT:MIN:MAX."""
        match = _PATTERN.fullmatch(rule)
        if match is None or match[1] not in get_args(Unit) or not (match[2] or match[3]):
            raise UsageError(
                f"--keep-length {rule}: expected UNIT:MIN:MAX, UNIT one of {', '.join(get_args(Unit))}",
                "for example --keep-length words:50: or --keep-length characters:200:100000",
            )
        least, most = (int(limit) if limit else None for limit in match.groups()[1:])
        if least is not None and most is not None and least > most:
            raise UsageError(f"--keep-length {rule}: no length is {least} or more and {most} or less")
        return cls(match[1], least, most)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.unit}:{'' if self.least is None else self.least}:{'' if self.most is None else self.most}"

    def removals(self, lengths: Lengths) -> dict[int, tuple[str, str]]:
        """Return the kind and the reason for each document whose length in units is outside the limits."""
        removals = {}
        for document in np.flatnonzero(lengths < self.least).tolist() if self.least is not None else ():
            removals[document] = TOO_SHORT, f"{TOO_SHORT}: {lengths[document]:,} {self.unit}, --keep-length {self}"
        for document in np.flatnonzero(lengths > self.most).tolist() if self.most is not None else ():
            removals[document] = TOO_LONG, f"{TOO_LONG}: {lengths[document]:,} {self.unit}, --keep-length {self}"
        return removals


def characters(texts: Texts) -> Lengths:
    """Count every text's code points: the bytes that do not continue a character."""
    begins = texts.data[: texts.offsets[-1]] & 0xC0 != 0x80
    counted = np.concatenate([[0], np.cumsum(begins)])
    lengths: Lengths = counted[texts.offsets[1:]] - counted[texts.offsets[:-1]]
    return lengths
