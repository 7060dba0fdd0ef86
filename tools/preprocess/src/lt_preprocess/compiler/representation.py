"""LLVM's intermediate representation and numba's types, imported at first use: only a run that compiles needs them."""

import importlib
from typing import Any


class _Module:
    """Import a module on first use."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


ir: Any = _Module("llvmlite.ir")
types: Any = _Module("numba.types")
cgutils: Any = _Module("numba.core.cgutils")


def integer(bits: int) -> Any:
    return ir.IntType(bits)


def vector(bits: int, count: int) -> Any:
    """A vector of so many integers."""
    return ir.VectorType(integer(bits), count)
