"""Triton's interpreter without what it does again at every call of a function: `hasten`.

It replaces triton.language's functions by its own before each kernel, and again before each function that a kernel calls; here
they stay replaced. And it looks up the NumPy type of a Triton type in a table that it makes for each lookup. A step of training
then takes two thirds of the time.
"""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def hasten() -> None:
    from triton.runtime import interpreter

    if not hasattr(interpreter._patch_lang, "cache_info"):
        interpreter._patch_lang = functools.cache(_lasting(interpreter._patch_lang))
        interpreter._get_np_dtype = _remembering(interpreter._get_np_dtype)


def _lasting(replace: Callable[[Any], object]) -> Callable[[Any], object]:
    def replace_and_keep(function: Any) -> object:
        replace(function)
        return SimpleNamespace(restore=lambda: None)

    return replace_and_keep


def _remembering(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def find_once(kind: Any) -> Any:
        name = kind.scalar.name
        if name not in known:
            known[name] = find(kind)
        return known[name]

    return find_once
