"""Masks of 64 bytes of text, and the state between the blocks of a text: shared by every module that cuts text in blocks.

A mask has a bit for each byte; the first byte has the lowest bit.

The head of the loop over characters outside ASCII is not here, but in each module that cuts: as one function, in four shapes,
also inlined, it made the encoders 1 to 4% slower (o200k, Qwen 3, DeepSeek V3, 5 MB of mixed text, warm, Xeon, 2026-11-27).
"""

import numpy as np

from lt_preprocess.compiler.intrinsics import leading_zeros, load8, load64, store64, trailing_zeros
from lt_preprocess.compiler.jit import inner
from lt_preprocess.compiler.simd import BLOCK_BYTES
from lt_preprocess.tokenizers.bpe.character_classes import SPACE
from lt_preprocess.tokenizers.bpe.characters import class_at

ZERO = np.uint64(0)
ONE = np.uint64(1)
LAST = np.uint64(63)
_THREE = np.uint64(3)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

LETTERS_BEFORE, NUMBERS_BEFORE, SPACES_BEFORE, BLANKS_BEFORE, OTHERS_BEFORE = range(0, 40, 8)
OPENERS_BEFORE, ABSORBED_BEFORE, INDENTS_BEFORE = range(40, 64, 8)
STARTS, NO_STARTS, NUMBER_LENGTH, NEXT_WORD = range(64, 96, 8)
LOWERS_BEFORE, CASELESS_BEFORE, LAST_WORD, HAN_BEFORE, UNCLEAR_BEFORE = range(96, 136, 8)
"""Byte offsets in the state that one block of a text passes to the next block: the last bit of a mask, or a count or flag."""

STATE_SIZE = 17
"""Number of uint64 values in a state."""


@inner
def low_bits(count: int) -> np.uint64:
    """The lowest `count` bits, none for a negative count."""
    if count >= BLOCK_BYTES:
        return _ALL
    return (ONE << np.uint64(count)) - ONE if count > 0 else ZERO


@inner
def shifted(mask: np.uint64, carried: int) -> np.uint64:
    """The mask shifted by one byte: a bit is set where the byte before it is in the mask. The last bit is kept at `carried`."""
    before = mask << ONE | load64(carried)
    store64(carried, mask >> LAST)
    return before


@inner
def number_starts(numbers: np.uint64, tails: np.uint64, before: np.uint64, state: int) -> np.uint64:
    """Mark the first number (a character of category N) of a run, and every third one after it.

    `numbers` masks the bytes of numbers, `tails` the bytes after the first one of a character, `before` the bytes after a number.
    """
    starts = numbers & ~before
    length = load64(state + NUMBER_LENGTH) if before & ONE else ZERO
    if (
        not (numbers & tails)
        and not (before & ONE)
        and not (numbers & numbers >> ONE & numbers >> np.uint64(2) & numbers >> _THREE)
    ):
        # The common case: ASCII digits in runs of at most three.
        store64(state + NUMBER_LENGTH, np.uint64(leading_zeros(~numbers)))
        return starts
    waiting = numbers & ~tails
    while waiting:
        bit = waiting & (~waiting + ONE)
        waiting ^= bit
        if not before & bit:
            length = ZERO
        if length % _THREE == 0:
            starts |= bit
        length += ONE
    store64(state + NUMBER_LENGTH, length)
    return starts


@inner
def after_line_breaks(
    at: int, end: int, classes: int, line_breaks: np.uint64, blanks: np.uint64, newlines: np.uint64, state: int
) -> np.uint64:
    """Mark the byte after each of `line_breaks` that is the last line break in its run of white space.

    White space without a line break follows each of `line_breaks`. `blanks` masks that white space, `newlines` all line breaks.
    """
    starts = ZERO
    while line_breaks:
        bit = trailing_zeros(line_breaks)
        line_breaks &= line_breaks - ONE
        stop = bit + 1
        if bit < 63:
            stop += trailing_zeros(~(blanks >> np.uint64(bit + 1)))
        if stop < BLOCK_BYTES:
            ends_in_newline = (newlines >> np.uint64(stop)) & ONE != 0
        else:
            following = at + min(stop, BLOCK_BYTES)
            while following < end and (load8(following) & 0xC0 == 0x80 or class_at(following, classes) == SPACE):
                following += 1
            ends_in_newline = following < end and (load8(following) == 0x0A or load8(following) == 0x0D)
        if not ends_in_newline:
            if bit < 63:
                starts |= ONE << np.uint64(bit + 1)
            else:
                store64(state + STARTS, load64(state + STARTS) | ONE)
    return starts
