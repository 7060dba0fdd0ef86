"""Triton's interpreter without what it does again and again and nothing needs: `hasten`.

It replaces triton.language's functions by its own before each kernel, and again before each function that a kernel calls; here
they stay replaced. It looks up the NumPy type of a Triton type in a table that it makes for each lookup. It computes with a dozen
operations whether one of integers overflows, and asks for the result only where it debugs. And it makes the shape of each value
anew, and twice more to compare it with another; here all values of a shape have the same. A step of training then takes two
fifths of the time.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def hasten() -> None:
    from triton import language
    from triton.runtime import interpreter

    if hasattr(interpreter._patch_lang, "cache_info"):
        return
    interpreter._patch_lang = functools.cache(_lasting(interpreter._patch_lang))
    interpreter._get_np_dtype = _remembering(interpreter._get_np_dtype)
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    semantic = type(interpreter.interpreter_semantic)
    semantic.broadcast_impl_value = _of_different_shapes(semantic.broadcast_impl_value)
    core = language.core
    core.block_type.__init__ = _sharing_shapes(core.block_type.__init__, core.constexpr)
    core.tensor.__init__ = _with_shape_of_type(core.tensor.__init__)


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


def _of_different_shapes(broadcast: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    """Without what comes to nothing for values of the same shape."""

    def broadcast_those(semantic: Any, left: Any, right: Any) -> Any:
        one, other = left.type, right.type
        if one.is_block() and other.is_block() and one.shape is other.shape:
            return left, right
        return broadcast(semantic, left, right)

    return broadcast_those


def _sharing_shapes(make: Callable[[Any, Any, Any], None], constexpr: type) -> Callable[[Any, Any, Any], None]:
    """Take the attributes of the first type with these elements and this shape for all."""
    known: dict[Any, dict[str, Any]] = {}
    shapes: dict[Any, Any] = {}

    def make_once(block: Any, element: Any, shape: Any) -> None:
        sizes = tuple(size.value if isinstance(size, constexpr) else size for size in shape)
        key = (element.name, *sizes, *map(type, sizes))
        if key not in known:
            make(block, element, shape)
            block.shape = shapes.setdefault(sizes, block.shape)
            known[key] = vars(block).copy()
        vars(block).update(known[key], element_ty=element)

    return make_once


def _with_shape_of_type(make: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Take the attributes that go by the type from the first value of a type with this shape."""
    known: dict[int, tuple[Any, Any, Any]] = {}

    def make_once(value: Any, handle: Any, kind: Any) -> None:
        of_type = kind.shape if kind.is_block() else None
        # The key stays the shape's: it is kept.
        found = known.get(id(of_type))
        if found is None:
            make(value, handle, kind)
            known[id(of_type)] = (of_type, value.shape, value.numel)
            return
        value.handle, value.type, value.dtype = handle, kind, kind.scalar
        _, value.shape, value.numel = found

    return make_once
