"""Triton's interpreter without what it does again and again and nothing needs: `hasten`.

It replaces triton.language's functions by its own before each kernel, and again before each function that a kernel calls; here
they stay replaced. It looks up the NumPy type of a Triton type in a table that it makes for each lookup. It computes with a dozen
operations whether one of integers overflows, and asks for the result only where it debugs. It makes the shape of each value anew,
and twice more to compare it with another; here all values of a shape have the same. It looks for the common type of operands of
one type, makes the numbers in a kernel anew for each program, and converts bfloat16 with thirty operations. RMSNorm in
bfloat16 took 0.77 s when the last two were done, and takes 0.41 s without them.
"""

import dataclasses
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

# Operators of a value, and NumPy's function for them.
OPERATORS = {"__add__": np.add, "__sub__": np.subtract, "__mul__": np.multiply}


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
    core = language.core
    semantic = type(interpreter.interpreter_semantic)
    semantic.broadcast_impl_value = _of_different_shapes(semantic.broadcast_impl_value)
    semantic.binary_op_type_checking_impl = _remembering_numbers(semantic.binary_op_type_checking_impl, core)
    interpreter._validate_np_data_size = _remembering_sizes(interpreter._validate_np_data_size)
    interpreter.TensorHandle.__init__ = _initialize_handle
    interpreter._convert_float = _shifting(interpreter._convert_float)
    interpreter._patch_attr = _calling_at_once(interpreter, core)
    core._unwrap_if_constexpr = _passing_values(core._unwrap_if_constexpr, core)
    core.dtype.__eq__ = _being_itself(core.dtype.__eq__)
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


def _remembering_sizes(is_valid: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    known: dict[tuple[int, str], bool] = {}

    def is_valid_once(array: Any, kind: Any) -> bool:
        key = (array.itemsize, kind.name)
        if key not in known:
            known[key] = is_valid(array, kind)
        return known[key]

    return is_valid_once


def _initialize_handle(handle: Any, data: Any, dtype: Any, attr: dict[str, Any] | None = None) -> None:
    """Without the detours of a dataclass."""
    handle.data, handle.dtype, handle.attr = data, dtype, {} if attr is None else attr
    handle.__post_init__()


def _shifting(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Convert between float32 and bfloat16, which are float32's upper 16 bits, by a shift, unless a number is subnormal."""

    def shift_or_convert(numbers: Any, source: Any, target: Any, rounding: Any) -> Any:
        names = (source.name, target.name)
        if rounding is None and names in (("fp32", "bf16"), ("bf16", "fp32")):
            is_wide = source.name == "fp32"
            bits = np.ascontiguousarray(numbers).view(np.uint32 if is_wide else np.uint16)
            largest_subnormal = 0x7FFFFF if is_wide else 0x7F
            magnitudes = bits & (0x7FFFFFFF if is_wide else 0x7FFF)
            if not ((magnitudes > 0) & (magnitudes <= largest_subnormal)).any():
                shifted = (bits >> 16).astype(np.uint16) if is_wide else bits.astype(np.uint32) << 16
                return shifted.reshape(numbers.shape)
        return convert(numbers, source, target, rounding)

    return shift_or_convert


def _remembering_numbers(check: Callable[..., Any], core: Any) -> Callable[..., Any]:
    """Return operands of one type as they are, and remember what becomes of a number beside a value of a type."""
    plain = {*core.dtype.SINT_TYPES, *core.dtype.UINT_TYPES, *core.dtype.FP_TYPES}
    halves = {"fp16", "bf16"}
    known: dict[Any, tuple[Any, Any]] = {}

    def check_once(
        semantic: Any,
        left: Any,
        right: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        slowly = functools.partial(check, semantic, left, right, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)
        if left.__class__ is not core.tensor or (name := left.dtype.name) not in plain:
            return slowly()
        if right.__class__ is core.tensor:
            # Division of halves is in float32.
            is_of_type = right.dtype.name == name and not (div_or_mod and name in halves)
            return semantic.broadcast_impl_value(left, right) if is_of_type else slowly()
        # Zero has two signs.
        if right.__class__ not in (int, float) or not right or not arithmetic_check:
            return slowly()
        key = (name, right.__class__, right, div_or_mod)
        if key not in known:
            value, _ = pair = slowly()
            known[key] = (value.dtype, semantic.scalar_constant(right, value.dtype))
            return pair
        kind, number = known[key]
        return semantic.broadcast_impl_value(semantic.cast(left, kind), number)

    return check_once


def _calling_at_once(interpreter: Any, core: Any) -> Callable[..., None]:
    """Give a function of triton.language what it computes with, without two functions around it."""
    around, semantic, builder = core.add.__code__, interpreter.interpreter_semantic, interpreter.interpreter_builder

    def patch(place: Any, name: str, member: Any, _: Any, scope: Any) -> None:
        function = member.__wrapped__ if member.__code__ is around else member

        def call(*arguments: Any, **options: Any) -> Any:
            options["_semantic"] = semantic
            return function(*arguments, **options)

        if place is core.tensor and name in OPERATORS:
            call = _directly(call, OPERATORS[name], core, builder)
        scope.set_attr(place, name, call)

    return patch


def _directly(operate: Callable[..., Any], operation: Any, core: Any, builder: Any) -> Callable[..., Any]:
    """Without a look at the types of operands of one type and shape."""
    plain = {*core.dtype.SINT_TYPES, *core.dtype.UINT_TYPES, *core.dtype.FP_TYPES}

    def operate_directly(left: Any, right: Any) -> Any:
        if right.__class__ is core.tensor and left.shape is right.shape:
            name = left.dtype.name
            if name == right.dtype.name and name in plain and not builder.options.sanitize_overflow:
                return core.tensor(builder.binary_op(left.handle, right.handle, operation), left.type)
        return operate(left, right)

    return operate_directly


def _passing_values(unwrap: Callable[[Any], Any], core: Any) -> Callable[[Any], Any]:
    values = {core.tensor, core.dtype, int, float, bool, str, type(None)}
    return lambda value: value if value.__class__ in values else unwrap(value)


def _being_itself(is_equal: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda kind, other: kind is other or is_equal(kind, other)


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
