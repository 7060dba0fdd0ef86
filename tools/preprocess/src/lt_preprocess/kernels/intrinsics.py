"""What the compiled encoders need from the processor and numba does not offer: memory by address, vector compares, bit counts.

Compiled code works on addresses. An array that is passed around brings a reference count, a shape and checks of its indices
into every function, which made a look-up three times slower and compiling twice as long. So arrays stay with the Python object
that owns them, and none of these functions checks bounds: buffers have room after their content for what is read at once.

Each function becomes a few instructions in the caller. Integers are little-endian and need no alignment.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types as numba_types
from numba.core import cgutils as numba_cgutils
from numba.extending import intrinsic

types: Any = numba_types
cgutils: Any = numba_cgutils

BLOCK_BYTES = 64
"""Bytes that `block_masks` looks at: as many as an integer has bits."""

LANES = 16
"""32-bit integers that `smallest`, `move_lanes` and `fill_lanes` work on at once."""

_BIT = ir.IntType(1)
_BYTE = ir.IntType(8)
_LANE = ir.IntType(32)
_WORD = ir.IntType(64)
_BLOCK = ir.VectorType(_BYTE, BLOCK_BYTES)
_VECTOR = ir.VectorType(_LANE, LANES)
_BUCKET = ir.VectorType(_WORD, 8)


def address(array: Any) -> int:
    """Where an array's data lie, for compiled code. The caller keeps the array alive."""
    return int(array.ctypes.data)


def aligned(words: int, fill: int = 0) -> npt.NDArray[np.uint64]:
    """An array of uint64 that starts at a cache line. Memory for zeros is taken when it is used."""
    memory = np.zeros(words + 8, np.uint64) if fill == 0 else np.full(words + 8, fill, np.uint64)
    start = -memory.ctypes.data % BLOCK_BYTES // 8
    return memory[start : start + words]


def _load(builder: Any, place: Any, kind: ir.Type) -> Any:
    load = builder.load(builder.inttoptr(place, kind.as_pointer()))
    load.align = 1
    return load


def _store(builder: Any, value: Any, place: Any, kind: ir.Type) -> None:
    builder.store(value, builder.inttoptr(place, kind.as_pointer())).align = 1


def _loader(kind: ir.Type, result: Any) -> Any:
    @intrinsic
    def load(typing: Any, place: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return _load(builder, arguments[0], kind)

        return result(types.int64), generate

    return load


def _storer(kind: ir.Type, value_type: Any) -> Any:
    @intrinsic
    def store(typing: Any, place: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _store(builder, arguments[1], arguments[0], kind)
            return context.get_dummy_value()

        return types.void(types.int64, value_type), generate

    return store


load8: Callable[[int], np.uint8] = _loader(_BYTE, types.uint8)
load32: Callable[[int], np.uint32] = _loader(_LANE, types.uint32)
load64: Callable[[int], np.uint64] = _loader(_WORD, types.uint64)
store8: Callable[[int, np.uint8], None] = _storer(_BYTE, types.uint8)
store32: Callable[[int, np.uint32], None] = _storer(_LANE, types.uint32)
store64: Callable[[int, np.uint64], None] = _storer(_WORD, types.uint64)


def _intrinsic(define: Callable[..., Any]) -> Callable[..., Any]:
    """`intrinsic` for functions whose Python signature is that of their definition."""
    made: Callable[..., Any] = intrinsic(define)
    return made


@_intrinsic
def _signed(typing: Any, value: Any) -> Any:
    """An integer as int64, its bits unchanged; one without a sign is widened with zeros."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], signature.args[0], types.int64)

    return types.int64(value), generate


signed: Callable[[Any], int] = _signed


@_intrinsic
def trailing_zeros(typing: Any, value: Any) -> Any:
    """The number of the lowest bit that is set; 64 when none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(_BIT, 0))

    return types.int64(types.uint64), generate


@_intrinsic
def leading_zeros(typing: Any, value: Any) -> Any:
    """The number of zero bits above the highest bit that is set; 64 when none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(_BIT, 0))

    return types.int64(types.uint64), generate


@_intrinsic
def block_masks(typing: Any, place: Any) -> Any:
    """Which of the BLOCK_BYTES bytes from `place` are of a kind: eight uint64 with a bit a byte, the first byte lowest.

    ASCII letters; ASCII digits; ASCII white space; line feeds and carriage returns; blanks (0x20); apostrophes; bytes of wider
    characters; of these, the ones that are not the first.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        load = _load(builder, arguments[0], _BLOCK)

        def each(value: int) -> Any:
            return ir.Constant(_BLOCK, [value] * BLOCK_BYTES)

        def within(values: Any, first: int, count: int) -> Any:
            return builder.icmp_unsigned("<", builder.sub(values, each(first)), each(count))

        def equal(value: int) -> Any:
            return builder.icmp_unsigned("==", load, each(value))

        kinds = [
            within(builder.or_(load, each(0x20)), ord("a"), 26),
            within(load, ord("0"), 10),
            builder.or_(within(load, 0x09, 5), equal(0x20)),
            builder.or_(equal(0x0A), equal(0x0D)),
            equal(0x20),
            equal(ord("'")),
            builder.icmp_unsigned(">=", load, each(0x80)),
            within(load, 0x80, 0x40),
        ]
        masks = [builder.bitcast(flags, _WORD) for flags in kinds]
        return context.make_tuple(builder, signature.return_type, masks)

    return types.UniTuple(types.uint64, 8)(types.int64), generate


def _spread(builder: Any, scalar: Any, vector: ir.VectorType) -> Any:
    """A vector with the scalar in every lane."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_LANE, 0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_LANE, vector.count), [0] * vector.count))


@_intrinsic
def smallest(typing: Any, place: Any) -> Any:
    """The smallest of the LANES uint32 from `place`, and the number of the first that equals it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        load = _load(builder, arguments[0], _VECTOR)
        reduce = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_LANE, [_VECTOR]), f"llvm.vector.reduce.umin.v{LANES}i32"
        )
        value = builder.call(reduce, [load])
        flags = builder.bitcast(builder.icmp_unsigned("==", load, _spread(builder, value, _VECTOR)), ir.IntType(LANES))
        lane = builder.zext(builder.cttz(flags, ir.Constant(_BIT, 1)), _WORD)
        return context.make_tuple(builder, signature.return_type, [value, lane])

    return types.Tuple((types.uint32, types.int64))(types.int64), generate


@_intrinsic
def move_lanes(typing: Any, source: Any, target: Any) -> Any:
    """Copy LANES uint32, all read before any is written."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store(builder, _load(builder, arguments[0], _VECTOR), arguments[1], _VECTOR)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@_intrinsic
def fill_lanes(typing: Any, target: Any) -> Any:
    """Set all bits of LANES uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store(builder, ir.Constant(_VECTOR, [0xFFFFFFFF] * LANES), arguments[0], _VECTOR)
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def equal_above(typing: Any, place: Any, shift: Any, value: Any) -> Any:
    """Which of the eight uint64 from `place` are `value` after a shift to the right; a bit each, the first lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        shifted = builder.lshr(_load(builder, arguments[0], _BUCKET), _spread(builder, arguments[1], _BUCKET))
        flags = builder.icmp_unsigned("==", shifted, _spread(builder, arguments[2], _BUCKET))
        return builder.zext(builder.bitcast(flags, _BYTE), _WORD)

    return types.uint64(types.int64, types.uint64, types.uint64), generate


@_intrinsic
def prefetch(typing: Any, place: Any) -> Any:
    """Start to load the cache line of an address that will be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _BYTE.as_pointer()
        request = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, _LANE, _LANE, _LANE]), "llvm.prefetch.p0"
        )
        for_reading, into_first_cache, data = (ir.Constant(_LANE, value) for value in (0, 3, 1))
        builder.call(request, [builder.inttoptr(arguments[0], pointer), for_reading, into_first_cache, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate
