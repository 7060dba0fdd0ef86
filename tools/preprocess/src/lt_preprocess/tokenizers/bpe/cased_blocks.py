r"""Words as Tekken, o200k and Kimi cut them, a block of 64 bytes at a time; `pretokenizer` does the same for patterns without
case.

A word of letters is UPPER*LOWER+, or else UPPER+: in a run of letters it ends before an upper case letter that follows lower
case. Two masks, upper and lower case, show these ends. A contraction belongs to the word before it; the letters after it begin
a new word.

Masks do not decide a few rare cases (`_by_masks` lists them). A block that contains one is cut by `cased_words`, a character at
a time: `_by_characters` continues the last word that began before the block, and keeps the start of the first word after it. So
the next block is exact, whatever the masks show in this block."""

from typing import Any

import numpy as np

from lt_preprocess.compiler.intrinsics import leading_zeros, load8, load64, signed, store64, trailing_zeros
from lt_preprocess.compiler.jit import inner
from lt_preprocess.compiler.simd import BLOCK_BYTES, case_masks, character_masks
from lt_preprocess.tokenizers.bpe import cased_words
from lt_preprocess.tokenizers.bpe.blocks import (
    ABSORBED_BEFORE,
    BLANKS_BEFORE,
    CASELESS_BEFORE,
    HAN_BEFORE,
    INDENTS_BEFORE,
    LAST,
    LAST_WORD,
    LETTERS_BEFORE,
    LOWERS_BEFORE,
    NEXT_WORD,
    NUMBERS_BEFORE,
    ONE,
    OPENERS_BEFORE,
    OTHERS_BEFORE,
    SPACES_BEFORE,
    STARTS,
    UNCLEAR_BEFORE,
    ZERO,
    after_line_breaks,
    low_bits,
    number_starts,
    shifted,
)
from lt_preprocess.tokenizers.bpe.character_classes import HAN, LETTER, LOWER, MARK, NUMBER, SPACE, UPPER
from lt_preprocess.tokenizers.bpe.characters import class_at, contraction_end, is_white_space, width
from lt_preprocess.tokenizers.pattern_codes import TEKKEN


@inner
def _wide_characters(
    by_script: bool, at: int, end: int, classes: int, wide: np.uint64, tails: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64]:
    """Classify the bytes of characters outside ASCII: letters and marks; upper case, lower case, marks; numbers; white space.

    Then white space before a non-space; Chinese characters, which are in no other mask; and Chinese characters that are no
    letters.
    """
    letters, uppers, lowers, marks = ZERO, ZERO, ZERO, ZERO
    numbers, spaces, lasts, han, unclear = ZERO, ZERO, ZERO, ZERO, ZERO
    leads = wide & ~tails
    character = at
    cut = tails & ONE
    while cut and (load8(character) & 0xC0) == 0x80:
        character -= 1
    while True:
        if not cut:
            if leads == 0:
                break
            character = at + trailing_zeros(leads)
            leads &= leads - ONE
        size = width(load8(character))
        kind = class_at(character, classes)
        bits = low_bits(size + character - at) if cut else low_bits(size) << np.uint64(character - at)
        cut = ZERO
        if kind == LETTER:
            letters |= bits
        elif kind == UPPER:
            letters |= bits
            uppers |= bits
        elif kind == LOWER:
            letters |= bits
            lowers |= bits
        elif by_script and kind >= HAN:
            han |= bits
            if kind != HAN + LETTER:
                unclear |= bits
        elif kind == MARK:
            letters |= bits
            marks |= bits
        elif kind == NUMBER:
            numbers |= bits
        elif kind == SPACE:
            spaces |= bits
            if character >= at and character + size < end and not is_white_space(character + size, classes):
                lasts |= ONE << np.uint64(character - at)
    return letters, uppers, lowers, marks, numbers, spaces, lasts, han, unclear


@inner
def _with_contractions(at: int, end: int, starts: np.uint64, apostrophes: np.uint64, state: int) -> tuple[np.uint64, bool]:
    """Let no word start in contractions, whose apostrophes follow letters, and one after each; and whether that is exact."""
    contraction = -1
    while apostrophes:
        bit = trailing_zeros(apostrophes)
        apostrophes &= apostrophes - ONE
        following = contraction_end(at + bit, end, 0x20) - at
        if following > bit and bit != contraction:
            # A character outside ASCII after a contraction may be a mark, which no mask decides.
            if at + following < end and load8(at + following) >= 0x80:
                return starts, False
            contraction = following
            starts &= ~(low_bits(following - bit) << np.uint64(bit))
            if following < BLOCK_BYTES:
                starts |= ONE << np.uint64(following)
            else:
                store64(state + NEXT_WORD, np.uint64(at + following))
    return starts, True


@inner
def _by_characters(word_end: Any, pattern: int, at: int, end: int, classes: int, state: int, word: int) -> np.uint64:
    """Return the word starts of a block, computed a character at a time from `word` on."""
    starts = ZERO
    stop = min(at + BLOCK_BYTES, end)
    while word < stop:
        if word >= at:
            starts |= ONE << np.uint64(word - at)
        word = word_end(pattern, word, end, classes)
    store64(state + NEXT_WORD, np.uint64(word))
    store64(state + STARTS, ZERO)
    return starts


@inner
def word_starts_by_case(pattern: int, at: int, end: int, classes: int, state: int) -> np.uint64:
    """As `pretokenizer.word_starts`, for Tekken and o200k."""
    return _word_starts(cased_words.word_end, False, pattern, at, end, classes, state)


@inner
def word_starts_by_script(pattern: int, at: int, end: int, classes: int, state: int) -> np.uint64:
    """As `word_starts_by_case`, for Kimi, whose pattern makes each run of Chinese characters a word."""
    return _word_starts(cased_words.word_end_by_script, True, pattern, at, end, classes, state)


@inner
def _word_starts(word_end: Any, by_script: bool, pattern: int, at: int, end: int, classes: int, state: int) -> np.uint64:
    next_word, last_word = signed(load64(state + NEXT_WORD)), signed(load64(state + LAST_WORD))
    if last_word == 0:
        next_word = last_word = at
    starts, is_exact = _by_masks(by_script, pattern, at, end, classes, state, next_word)
    if next_word >= at + BLOCK_BYTES:
        store64(state + NEXT_WORD, np.uint64(next_word))
        store64(state + STARTS, ZERO)
        return ZERO
    if not is_exact:
        starts = _by_characters(word_end, pattern, at, end, classes, state, max(next_word, last_word))
    if starts:
        last_word = at + 63 - leading_zeros(starts)
    store64(state + LAST_WORD, np.uint64(last_word))
    return starts


@inner
def _by_masks(
    by_script: bool, pattern: int, at: int, end: int, classes: int, state: int, next_word: int
) -> tuple[np.uint64, bool]:
    """The word starts of a block, and whether they are exact; no word starts before `next_word`, if that is not before the block.

    The masks are carried to the next block in any case.
    """
    letters, numbers, spaces, newlines, blanks, apostrophes, wide, tails = character_masks(at)
    uppers, slashes = case_masks(at)
    valid = low_bits(end - at)
    letters &= valid
    numbers &= valid
    spaces &= valid
    newlines &= valid
    tails &= valid
    wide &= valid
    uppers &= valid
    slashes &= valid
    lowers, marks, han, unclear = letters & ~uppers, ZERO, ZERO, ZERO
    next_block = at + BLOCK_BYTES
    non_space_next, next_is_indent = ZERO, ZERO
    if next_block < end and (load8(next_block) & 0xC0) != 0x80:
        kind = class_at(next_block, classes)
        next_is_indent = ONE if kind == SPACE else ZERO
        non_space_next = ZERO if is_white_space(next_block, classes) else ONE
    lasts = spaces & ((valid & ~spaces) >> ONE | non_space_next << LAST)
    if wide:
        wide_letters, wide_uppers, wide_lowers, marks, wide_numbers, wide_spaces, wide_lasts, han, unclear = _wide_characters(
            by_script, at, end, classes, wide, tails
        )
        letters |= wide_letters
        uppers |= wide_uppers
        lowers |= wide_lowers
        numbers |= wide_numbers
        spaces |= wide_spaces
        lasts = (lasts & ~(wide_spaces >> ONE)) | wide_lasts
    others, after_han = valid & ~(letters | numbers | spaces | han), ZERO
    if by_script:
        after_han = shifted(han, state + HAN_BEFORE)
        unclear |= numbers & load64(state + UNCLEAR_BEFORE)
        store64(state + UNCLEAR_BEFORE, ONE if unclear else ZERO)
    after_letters = shifted(letters, state + LETTERS_BEFORE)
    after_numbers = shifted(numbers, state + NUMBERS_BEFORE)
    after_blanks = shifted(blanks, state + BLANKS_BEFORE)
    after_others = shifted(others, state + OTHERS_BEFORE)
    after_lowers = shifted(lowers, state + LOWERS_BEFORE)
    after_caseless = shifted(letters & ~(uppers | lowers), state + CASELESS_BEFORE)
    forced, forbidden = load64(state + STARTS) & valid, low_bits(next_word - at)
    store64(state + STARTS, ZERO)
    if 0 <= next_word - at < BLOCK_BYTES:
        forced |= ONE << np.uint64(next_word - at) & valid
    first_absorbed = newlines & (after_others | load64(state + ABSORBED_BEFORE))
    absorbed = newlines & ~(newlines + first_absorbed)
    # Masks do not decide these characters:
    # - an upper case letter after a letter without case, or after a mark: a word ends there only if no lower case follows
    # - a mark that no letter precedes: it begins a word, or belongs to the characters before it
    # - for Kimi a Chinese number, mark or symbol: it begins a Chinese word, or belongs to the characters before it; also numbers
    #   at the start of the next block, because the numbers before them may have been counted wrongly
    # - a slash after a line break that belongs to the word before it
    odd = (marks & ~tails & ~after_letters) | (uppers & ~tails & after_caseless)
    odd |= unclear | (marks & forced) | (slashes & shifted(absorbed, state + ABSORBED_BEFORE))
    spaces &= ~absorbed
    indents = spaces & ~newlines
    openers = (others & ~after_others & ~after_blanks) | (others & forced)
    reaching = openers
    if wide:
        for _ in range(3):
            reaching |= (reaching << ONE | load64(state + OPENERS_BEFORE)) & tails & others
    after_absorbers = shifted(indents, state + INDENTS_BEFORE) | shifted(reaching, state + OPENERS_BEFORE)
    starts = (spaces & ~shifted(spaces, state + SPACES_BEFORE)) | (lasts & ~newlines) | openers
    starts |= (letters & ~after_letters & ~after_absorbers) | (uppers & after_lowers)
    starts |= numbers & ~tails if pattern == TEKKEN else number_starts(numbers, tails, after_numbers, state)
    starts |= han & ~after_han
    indented = newlines & spaces & (indents >> ONE | next_is_indent << LAST)
    if indented:
        starts |= after_line_breaks(at, end, classes, indented, indents, newlines, state)
    starts = (starts & ~forbidden) | forced
    is_exact = odd == 0
    contractions = apostrophes & after_letters & ~forced & ~forbidden & valid
    if contractions and pattern != TEKKEN and is_exact:
        starts, is_exact = _with_contractions(at, end, starts, contractions, state)
    return starts & valid, is_exact
