"""Vector instructions for compiled code: masks of 64 bytes of text, compares and moves of vectors of integers, by address.

numba has no vectors, but LLVM has, on every processor: these functions are written in its intermediate representation, and become
64-byte registers with AVX-512 and two or four smaller ones elsewhere. A scalar loop processes a byte in one or two cycles, a
mask of 64 bytes about 20 bytes in a cycle. A mask has a bit for each byte; the first byte has the lowest bit. Nothing checks
bounds: text has padding for reads after its end, and for the 3 bytes that `utf8_errors` reads before its start.
"""

from collections.abc import Sequence
from typing import Any

from lt_preprocess.compiler.intrinsics import load_as, store_as, typed_intrinsic
from lt_preprocess.compiler.representation import cgutils, integer, ir, types, vector

BLOCK_BYTES = 64
"""Bytes of text in a mask: as many as an integer has bits."""

LANES = 16
"""32-bit integers that `lane_min`, `copy_lanes`, `fill_lanes` and `merge_lanes` work on at once."""


def _block() -> Any:
    return vector(8, BLOCK_BYTES)


def _lanes() -> Any:
    return vector(32, LANES)


def _eight_words() -> Any:
    return vector(64, 8)


def _each_byte(value: int) -> Any:
    return ir.Constant(_block(), [value] * BLOCK_BYTES)


def _is_equal(builder: Any, block: Any, value: int) -> Any:
    return builder.icmp_unsigned("==", block, _each_byte(value))


def _is_below(builder: Any, block: Any, value: int) -> Any:
    return builder.icmp_unsigned("<", block, _each_byte(value))


def _is_at_least(builder: Any, block: Any, value: int) -> Any:
    return builder.icmp_unsigned(">=", block, _each_byte(value))


def _is_within(builder: Any, block: Any, first: int, count: int) -> Any:
    return builder.icmp_unsigned("<", builder.sub(block, _each_byte(first)), _each_byte(count))


def _any_of(builder: Any, flags: Sequence[Any]) -> Any:
    result = flags[0]
    for more in flags[1:]:
        result = builder.or_(result, more)
    return result


def _masks(context: Any, builder: Any, signature: Any, flags: Sequence[Any]) -> Any:
    return context.make_tuple(builder, signature.return_type, [builder.bitcast(kind, integer(64)) for kind in flags])


@typed_intrinsic
def character_masks(typing: Any, address: Any) -> Any:
    """Classify the BLOCK_BYTES bytes at `address`: eight uint64 masks.

    ASCII letters; ASCII digits; ASCII white space; line feeds and carriage returns; spaces (0x20); apostrophes; bytes of
    characters outside ASCII; the continuation bytes among them.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = load_as(_block(), builder, arguments[0])
        kinds = [
            _is_within(builder, builder.or_(block, _each_byte(0x20)), ord("a"), 26),
            _is_within(builder, block, ord("0"), 10),
            builder.or_(_is_within(builder, block, 0x09, 5), _is_equal(builder, block, 0x20)),
            builder.or_(_is_equal(builder, block, 0x0A), _is_equal(builder, block, 0x0D)),
            _is_equal(builder, block, 0x20),
            _is_equal(builder, block, ord("'")),
            _is_at_least(builder, block, 0x80),
            _is_within(builder, block, 0x80, 0x40),
        ]
        return _masks(context, builder, signature, kinds)

    return types.UniTuple(types.uint64, 8)(types.int64), generate


@typed_intrinsic
def case_masks(typing: Any, address: Any) -> Any:
    """Two uint64 masks of the BLOCK_BYTES bytes at `address`: upper case ASCII letters; slashes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = load_as(_block(), builder, arguments[0])
        kinds = [_is_within(builder, block, ord("A"), 26), _is_equal(builder, block, ord("/"))]
        return _masks(context, builder, signature, kinds)

    return types.UniTuple(types.uint64, 2)(types.int64), generate


@typed_intrinsic
def control_mask(typing: Any, address: Any) -> Any:
    """Return a uint64 mask of the ASCII control characters, including white space, among the BLOCK_BYTES bytes at `address`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = load_as(_block(), builder, arguments[0])
        return builder.bitcast(builder.or_(_is_below(builder, block, 0x20), _is_equal(builder, block, 0x7F)), integer(64))

    return types.uint64(types.int64), generate


@typed_intrinsic
def leads_from_u0300(typing: Any, address: Any) -> Any:
    """A uint64 mask of the BLOCK_BYTES bytes at `address`: the first bytes of characters from U+0300 on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = load_as(_block(), builder, arguments[0])
        return builder.bitcast(_is_at_least(builder, block, 0xCC), integer(64))

    return types.uint64(types.int64), generate


@typed_intrinsic
def bytes_between(typing: Any, address: Any, least: Any, most: Any) -> Any:
    """A uint64 mask of the BLOCK_BYTES bytes at `address`: those from `least` to `most`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = load_as(_block(), builder, arguments[0])
        least, most = (_broadcast(builder, bound, _block()) for bound in arguments[1:])
        is_between = builder.icmp_unsigned("<=", builder.sub(block, least), builder.sub(most, least))
        return builder.bitcast(is_between, integer(64))

    return types.uint64(types.int64, types.uint8, types.uint8), generate


@typed_intrinsic
def string_stops(typing: Any, address: Any) -> Any:
    """Two uint64 masks of the BLOCK_BYTES bytes at `address`: quotes, backslashes, control characters; bytes outside ASCII."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = load_as(_block(), builder, arguments[0])
        stops = [
            _is_equal(builder, block, ord('"')),
            _is_equal(builder, block, ord("\\")),
            _is_below(builder, block, 0x20),
        ]
        return _masks(context, builder, signature, [_any_of(builder, stops), _is_at_least(builder, block, 0x80)])

    return types.UniTuple(types.uint64, 2)(types.int64), generate


@typed_intrinsic
def utf8_errors(typing: Any, address: Any) -> Any:
    """A uint64 mask of the BLOCK_BYTES bytes at `address`: those that are invalid in UTF-8 after the three bytes before each.

    A character that is cut off shows at the byte after it. The three bytes before `address` count as well.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        this, one_before, two_before, three_before = (
            load_as(_block(), builder, builder.sub(arguments[0], ir.Constant(integer(64), back))) for back in range(4)
        )

        def second_of(first: int, is_wrong: Any) -> Any:
            return builder.and_(_is_equal(builder, one_before, first), is_wrong)

        continues = builder.icmp_signed("<", this, _each_byte(-64 & 0xFF))
        must_continue = _any_of(
            builder,
            [
                _is_at_least(builder, one_before, 0xC0),
                _is_at_least(builder, two_before, 0xE0),
                _is_at_least(builder, three_before, 0xF0),
            ],
        )
        errors = [
            builder.xor(continues, must_continue),
            second_of(0xE0, _is_below(builder, this, 0xA0)),
            second_of(0xED, _is_at_least(builder, this, 0xA0)),
            second_of(0xF0, _is_below(builder, this, 0x90)),
            second_of(0xF4, _is_at_least(builder, this, 0x90)),
            builder.and_(_is_at_least(builder, this, 0xC0), _is_below(builder, this, 0xC2)),
            _is_at_least(builder, this, 0xF5),
        ]
        return builder.bitcast(_any_of(builder, errors), integer(64))

    return types.uint64(types.int64), generate


@typed_intrinsic
def copy_block(typing: Any, source: Any, target: Any) -> Any:
    """Copy BLOCK_BYTES bytes, all read before any is written."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_as(_block(), builder, load_as(_block(), builder, arguments[0]), arguments[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _broadcast(builder: Any, scalar: Any, kind: Any) -> Any:
    """A vector with the scalar in every lane."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(integer(32), 0))
    return builder.shuffle_vector(one, one, ir.Constant(vector(32, kind.count), [0] * kind.count))


@typed_intrinsic
def lane_min(typing: Any, address: Any) -> Any:
    """The smallest of the LANES uint32 at `address`, and the index of the first that equals it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = load_as(_lanes(), builder, arguments[0])
        reduce = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(integer(32), [_lanes()]), f"llvm.vector.reduce.umin.v{LANES}i32"
        )
        value = builder.call(reduce, [lanes])
        is_smallest = builder.icmp_unsigned("==", lanes, _broadcast(builder, value, _lanes()))
        index = builder.cttz(builder.bitcast(is_smallest, ir.IntType(LANES)), ir.Constant(integer(1), 1))
        return context.make_tuple(builder, signature.return_type, [value, builder.zext(index, integer(64))])

    return types.Tuple((types.uint32, types.int64))(types.int64), generate


@typed_intrinsic
def copy_lanes(typing: Any, source: Any, target: Any) -> Any:
    """Copy LANES uint32, all read before any is written."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_as(_lanes(), builder, load_as(_lanes(), builder, arguments[0]), arguments[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@typed_intrinsic
def fill_lanes(typing: Any, target: Any, value: Any) -> Any:
    """Store `value` in LANES uint32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        store_as(_lanes(), builder, _broadcast(builder, arguments[1], _lanes()), arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.uint32), generate


@typed_intrinsic
def merge_lanes(typing: Any, address: Any, at: Any, before: Any, value: Any) -> Any:
    """Merge lane `at` of the LANES uint32 at `address` with the lane after it, into `value`; store `before` in the lane before.

    Lanes after `at` move forward by one; the first uint32 after the LANES moves into the last lane. `at` is from -LANES to LANES:
    lanes of an array that begins or ends elsewhere. A processor stalls when it loads lanes that a narrower store has changed, so
    all lanes are stored at once.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, at, before, value = arguments
        lanes = load_as(_lanes(), builder, address)
        following = load_as(_lanes(), builder, builder.add(address, ir.Constant(integer(64), 4 * LANES)))
        moved = builder.shuffle_vector(lanes, following, ir.Constant(_lanes(), list(range(1, LANES + 1))))
        numbers = ir.Constant(_lanes(), list(range(LANES)))
        first = _broadcast(builder, builder.trunc(at, integer(32)), _lanes())
        one_before = builder.sub(first, ir.Constant(_lanes(), [1] * LANES))
        merged = builder.select(builder.icmp_signed(">", numbers, first), moved, lanes)
        for number, content in ((one_before, before), (first, value)):
            is_here = builder.icmp_signed("==", numbers, number)
            merged = builder.select(is_here, _broadcast(builder, content, _lanes()), merged)
        store_as(_lanes(), builder, merged, address)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.uint32, types.uint32), generate


@typed_intrinsic
def equal_after_shift(typing: Any, address: Any, shift: Any, value: Any) -> Any:
    """Which of the eight uint64 at `address` equal `value` after a right shift by `shift`; a bit each, the first lowest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words = load_as(_eight_words(), builder, arguments[0])
        shifted = builder.lshr(words, _broadcast(builder, arguments[1], _eight_words()))
        is_equal = builder.icmp_unsigned("==", shifted, _broadcast(builder, arguments[2], _eight_words()))
        return builder.zext(builder.bitcast(is_equal, integer(8)), integer(64))

    return types.uint64(types.int64, types.uint64, types.uint64), generate
