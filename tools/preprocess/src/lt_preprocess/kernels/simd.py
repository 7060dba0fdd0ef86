"""Blocks of 64 bytes as compiled code reads them: one mask says where the bytes are that matter, one bit a byte.

numba has no vectors, but LLVM has, on every processor: the functions here are written in its own instructions, and become 64-byte
registers with AVX-512 and two or four smaller ones elsewhere. A scalar loop looks at one byte a cycle or two, these at about 20.
Reads may touch 3 bytes before `at` and 64 from it.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]

BLOCK_BYTES = 64

Generator = Callable[[Any, Any, Any, Any], Any]

_VECTOR = ir.VectorType(ir.IntType(8), BLOCK_BYTES)
_MASK = ir.IntType(BLOCK_BYTES)
_TWO_MASKS = cast(Any, types).Tuple((types.uint64, types.uint64))


def _instruction(function: Callable[..., tuple[Any, Generator]]) -> Callable[..., Any]:
    """Make the generator of LLVM code callable from compiled functions, without the typing context."""
    return cast(Callable[..., Any], intrinsic(function))


def _splat(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * BLOCK_BYTES)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), _VECTOR.as_pointer())


def _load(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    block = builder.load(_pointer(context, builder, array_type, array, at))
    block.align = 1
    return block


def _mask(builder: Any, lanes: Any) -> Any:
    return builder.bitcast(lanes, _MASK)


def _any_of(builder: Any, lanes: Sequence[Any]) -> Any:
    result = lanes[0]
    for more in lanes[1:]:
        result = builder.or_(result, more)
    return result


@_instruction
def string_stops(typing_context: Any, data: Any, at: Any) -> tuple[Any, Generator]:
    """Two uint64 masks of data[at:at + 64]: quotes, backslashes and control characters; and bytes outside ASCII."""
    signature = _TWO_MASKS(data, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _load(context, builder, signature.args[0], *arguments)
        stops = _any_of(
            builder,
            [
                builder.icmp_unsigned("==", block, _splat(ord('"'))),
                builder.icmp_unsigned("==", block, _splat(ord("\\"))),
                builder.icmp_unsigned("<", block, _splat(0x20)),
            ],
        )
        high = builder.icmp_unsigned(">=", block, _splat(0x80))
        return context.make_tuple(builder, signature.return_type, [_mask(builder, stops), _mask(builder, high)])

    return signature, generate


@_instruction
def copy_block(typing_context: Any, data: Any, at: Any, target: Any, to: Any) -> tuple[Any, Generator]:
    """Copy 64 bytes from data[at:] to target[to:]."""
    signature = types.void(data, types.int64, target, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = _load(context, builder, signature.args[0], *arguments[:2])
        builder.store(block, _pointer(context, builder, signature.args[2], *arguments[2:]), align=1)
        return context.get_dummy_value()

    return signature, generate


@_instruction
def utf8_errors(typing_context: Any, data: Any, at: Any) -> tuple[Any, Generator]:
    """A uint64 mask of the bytes of data[at:at + 64] that cannot stand in UTF-8 after the three bytes before each.

    A character that is cut off shows at the byte after it. The bytes before `at` count as well.
    """
    signature = types.uint64(data, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data, at = arguments
        this, one_before, two_before, three_before = (
            _load(context, builder, signature.args[0], data, builder.sub(at, ir.Constant(at.type, back))) for back in range(4)
        )

        def at_least(block: Any, value: int) -> Any:
            return builder.icmp_unsigned(">=", block, _splat(value))

        def below(block: Any, value: int) -> Any:
            return builder.icmp_unsigned("<", block, _splat(value))

        def second_of(first: int, is_wrong: Any) -> Any:
            return builder.and_(builder.icmp_unsigned("==", one_before, _splat(first)), is_wrong)

        continues = builder.icmp_signed("<", this, _splat(-64 & 0xFF))
        must_continue = _any_of(builder, [at_least(one_before, 0xC0), at_least(two_before, 0xE0), at_least(three_before, 0xF0)])
        errors = _any_of(
            builder,
            [
                builder.xor(continues, must_continue),
                second_of(0xE0, below(this, 0xA0)),
                second_of(0xED, at_least(this, 0xA0)),
                second_of(0xF0, below(this, 0x90)),
                second_of(0xF4, at_least(this, 0x90)),
                builder.and_(at_least(this, 0xC0), below(this, 0xC2)),
                at_least(this, 0xF5),
            ],
        )
        return _mask(builder, errors)

    return signature, generate


@_instruction
def lowest_bit(typing_context: Any, mask: Any) -> tuple[Any, Generator]:
    """The number of the lowest bit that is set in a mask, 64 when none is."""
    signature = types.int64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return signature, generate
