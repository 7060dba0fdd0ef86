"""What will be compiled, as modules declare it: nothing here needs the compiler, which takes half a second to import.

A module with compiled functions is imported by every run, and compiles in the first one only.
"""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Inner:
    """A function that compiled code calls."""

    function: Callable[..., Any]
    is_inlined: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Intrinsic:
    """A function that is written in LLVM's intermediate representation; `define` is as numba's `intrinsic` takes it."""

    define: Callable[..., Any]
