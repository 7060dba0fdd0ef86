"""Bounds of an interpretation: steps, depth of calls, and sizes of values."""

from typing import Any

from lt_shared.console import BadData

# A model of 126 layers in TorchTitan's registry takes about 60,000 steps; a million take 2 to 4 seconds.
MOST_STEPS = 1_000_000
MOST_CALLS = 60
MOST_FILES = 400
LARGEST_FILE = 2_000_000
LONGEST = 100_000
MOST_BITS = 4_096
REMEDY = "a configuration needs no such program: import the file that the trainer writes, or give its command line"


class Limits:
    """Count the steps and the depth of calls. Raises BadData beyond the bounds."""

    def __init__(self) -> None:
        self.steps = self.depth = 0

    def step(self, count: int = 1) -> None:
        self.steps += count
        if self.steps > MOST_STEPS:
            raise BadData(f"more than {MOST_STEPS:,} steps to read it", REMEDY)

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MOST_CALLS:
            raise BadData(f"calls nested more than {MOST_CALLS} deep", REMEDY)

    def leave(self) -> None:
        self.depth -= 1

    def check(self, value: Any, is_new: bool = True) -> Any:
        """Return `value`. Raises BadData for a number, text or collection that is too large.

        A new value takes a step for each 8 entries, which bounds the memory of all values.
        """
        if isinstance(value, bool):
            return value
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise BadData(f"a number of more than {MOST_BITS} bits", REMEDY)
        if isinstance(value, str | bytes | list | tuple | dict | set | frozenset):
            if len(value) > LONGEST:
                raise BadData(f"a value of more than {LONGEST:,} entries", REMEDY)
            self.step(len(value) // 8 if is_new else 0)
        return value
