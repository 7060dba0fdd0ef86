"""Processor features that numba does not offer to the compiled encoders: memory by address, bit counts, prefetches.

Compiled code works on addresses. An array argument brings a reference count, a shape and index checks into every function, which
made a look-up three times slower and compiling twice as long. So arrays stay with the Python object that owns them, and no
function checks bounds: buffers have padding after their content, because several bytes are read at once.

Each function becomes a few instructions in the caller. Integers are little-endian and need no alignment.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.declarations import Intrinsic
from lt_preprocess.compiler.representation import cgutils, integer, ir, types

CACHE_LINE_BYTES = 64


def address(array: Any) -> int:
    """Where an array's data lie, for compiled code. The caller keeps the array alive."""
    return int(array.ctypes.data)


def aligned(words: int, fill: int = 0, boundary_bytes: int = CACHE_LINE_BYTES) -> npt.NDArray[np.uint64]:
    """Return an array of `words` uint64 that starts at a cache line. Pages of zeros are allocated when they are first written."""
    size = words + boundary_bytes // 8
    array = np.zeros(size, np.uint64) if fill == 0 else np.full(size, fill, np.uint64)
    start = -array.ctypes.data % boundary_bytes // 8
    return array[start : start + words]


def load_as(kind: Any, builder: Any, address: Any) -> Any:
    """Generate the load of a value or vector from any address."""
    load = builder.load(builder.inttoptr(address, kind.as_pointer()))
    load.align = 1
    return load


def store_as(kind: Any, builder: Any, value: Any, address: Any) -> None:
    """Generate the store of a value or vector to any address."""
    builder.store(value, builder.inttoptr(address, kind.as_pointer())).align = 1


def typed_intrinsic(define: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a function of compiled code. `define` returns its signature and what generates its code in the caller."""
    return cast("Callable[..., Any]", Intrinsic(define))


def _loader(bits: int) -> Any:
    @typed_intrinsic
    def load(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return load_as(integer(bits), builder, arguments[0])

        return getattr(types, f"uint{bits}")(types.int64), generate

    return load


def _storer(bits: int) -> Any:
    @typed_intrinsic
    def store(typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            store_as(integer(bits), builder, arguments[1], arguments[0])
            return context.get_dummy_value()

        return types.void(types.int64, getattr(types, f"uint{bits}")), generate

    return store


load8: Callable[[int], np.uint8] = _loader(8)
load32: Callable[[int], np.uint32] = _loader(32)
load64: Callable[[int], np.uint64] = _loader(64)
store8: Callable[[int, np.uint8], None] = _storer(8)
store32: Callable[[int, np.uint32], None] = _storer(32)
store64: Callable[[int, np.uint64], None] = _storer(64)


@typed_intrinsic
def element_address(typing: Any, array: Any, index: Any) -> Any:
    """The address of array[index], for compiled code that has the array; not checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(builder.gep(data, [arguments[1]]), integer(64))

    return types.int64(array, types.int64), generate


@typed_intrinsic
def _signed(typing: Any, value: Any) -> Any:
    """An integer as int64, its bits unchanged; one without a sign is widened with zeros."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], signature.args[0], types.int64)

    return types.int64(value), generate


signed: Callable[[Any], int] = _signed


@typed_intrinsic
def trailing_zeros(typing: Any, value: Any) -> Any:
    """The index of the lowest bit that is set; 64 when none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(integer(1), 0))

    return types.int64(types.uint64), generate


@typed_intrinsic
def leading_zeros(typing: Any, value: Any) -> Any:
    """The number of zero bits above the highest bit that is set; 64 when none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(integer(1), 0))

    return types.int64(types.uint64), generate


@typed_intrinsic
def _stay_a_call(typing: Any) -> Any:
    """Call this in a function that LLVM must not inline: a rare path in a hot loop would take registers from the common path."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


stay_a_call: Callable[[], None] = _stay_a_call


@typed_intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Start to load the cache line of an address that will be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = integer(8).as_pointer()
        request = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [pointer, integer(32), integer(32), integer(32)]), "llvm.prefetch.p0"
        )
        for_reading, into_first_cache, data = (ir.Constant(integer(32), value) for value in (0, 3, 1))
        builder.call(request, [builder.inttoptr(arguments[0], pointer), for_reading, into_first_cache, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@typed_intrinsic
def allocate(typing: Any, size_bytes: Any) -> Any:
    """The address of memory for so many bytes, 0 when there is none; `release` gives it back."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(integer(64), [integer(64)])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "malloc"), arguments)

    return types.int64(types.int64), generate


@typed_intrinsic
def release(typing: Any, address: Any) -> Any:
    """Give back what `allocate` gave."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [integer(64)])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "free"), arguments)
        return context.get_dummy_value()

    return types.void(types.int64), generate
