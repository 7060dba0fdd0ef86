r"""Split UTF-8 text into the words within which byte pairs are merged, as the regular expressions of GPT-2 and Llama 3 do.

GPT-2:    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
Llama 3:  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
          \s*[\r\n]+|\s+(?!\S)|\s+
Qwen 2:   Llama 3's with \p{N} for \p{N}{1,3}
Qwen 3.5: Qwen 2's with [\p{L}\p{M}] for \p{L}, which is the same code over other character classes
cl100k:   Llama 3's, but for the white space at the end of a text; see `final_white_space`
Tekken and o200k cut between cases too; see `cased_words`, which does it a character at a time, as `han_words` for Kimi and
`split_sequences` for DeepSeek and StarCoder.

The text is read in blocks of 64 bytes. Vector compares give a bit mask for each class of characters, and some sixty operations
on these masks give the bytes at which words start, without a branch for each word: a regular expression engine, and a loop over
characters too, spends most of its time on branches that the processor cannot predict. Only what is rare is done character by
character: what is outside ASCII, contractions, long numbers, indentation. English takes 0.4 ns a byte this way; a loop over
characters took 5.

The words of each pattern, as runs of characters of one class (letters L, numbers N, white space S, others O):

- GPT-2: a run of L, N or O is a word, together with a blank before it. Of a run of S, the last character stands alone unless it
  is such a blank or the text ends.
- Llama 3: a run of L is a word, with the one S (no line break) or single O before it. Numbers are cut after three digits. A run
  of O is a word with a blank before and the line breaks after it. Of the rest of a run of S, a word ends after the last line
  break, and the last character stands alone unless it belongs to the following word or the text ends.
- A contraction is a word where an apostrophe starts one."""

import numpy as np

from lt_preprocess.kernels.intrinsics import (
    leading_zeros,
    load8,
    load64,
    signed,
    store64,
    trailing_zeros,
)
from lt_preprocess.kernels.jit import inner
from lt_preprocess.kernels.simd import BLOCK_BYTES, character_masks
from lt_preprocess.tokenizers.bpe import cased_words, han_words, split_sequences
from lt_preprocess.tokenizers.bpe.character_classes import LETTER, NUMBER, SPACE
from lt_preprocess.tokenizers.bpe.characters import class_at, contraction_end, is_white_space, width
from lt_preprocess.tokenizers.pattern_codes import DEEPSEEK, GPT2, O200K, QWEN2

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_THREE = np.uint64(3)
_LAST = np.uint64(63)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

_LETTERS_BEFORE, _NUMBERS_BEFORE, _SPACES_BEFORE, _BLANKS_BEFORE, _OTHERS_BEFORE = range(5)
_OPENERS_BEFORE, _ABSORBED_BEFORE, _INDENTS_BEFORE = range(5, 8)
_STARTS, _NO_STARTS, _NUMBER_LENGTH, _NEXT_WORD = range(8, 12)
STATE_SIZE = 12
"""uint64 that are carried from one block of a text to the next: the last bit of a mask, or what a block says about the next."""


@inner
def _get(state: int, name: int) -> np.uint64:
    return load64(state + 8 * name)


@inner
def _set(state: int, name: int, value: np.uint64) -> None:
    store64(state + 8 * name, value)


@inner
def _bits(count: int) -> np.uint64:
    """The lowest `count` bits, none for a negative count."""
    if count >= BLOCK_BYTES:
        return _ALL
    return (_ONE << np.uint64(count)) - _ONE if count > 0 else _ZERO


@inner
def _wide_characters(
    at: int, end: int, classes: int, wide: np.uint64, tails: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """The bytes of the block's letters, numbers and white space outside ASCII, and which white space a non-space follows."""
    letters, numbers, spaces, lasts = _ZERO, _ZERO, _ZERO, _ZERO
    leads = wide & ~tails
    character = at
    cut = tails & _ONE
    while cut and (load8(character) & 0xC0) == 0x80:
        character -= 1
    while True:
        if not cut:
            if leads == 0:
                break
            character = at + trailing_zeros(leads)
            leads &= leads - _ONE
        size = width(load8(character))
        kind = class_at(character, classes)
        bits = _bits(size + character - at) if cut else _bits(size) << np.uint64(character - at)
        cut = _ZERO
        if kind >= LETTER:
            letters |= bits
        elif kind == NUMBER:
            numbers |= bits
        elif kind == SPACE:
            spaces |= bits
            if character >= at and character + size < end and not is_white_space(character + size, classes):
                lasts |= _ONE << np.uint64(character - at)
    return letters, numbers, spaces, lasts


@inner
def _with_contractions(at: int, end: int, starts: np.uint64, apostrophes: np.uint64, lower: int, state: int) -> np.uint64:
    """Let a word start after a contraction, not within it."""
    while apostrophes:
        bit = trailing_zeros(apostrophes)
        apostrophes &= apostrophes - _ONE
        size = contraction_end(at + bit, end, lower) - at - bit
        if size:
            following = np.uint64(bit + size)
            inside = _bits(size - 1) << np.uint64(bit + 1) if bit < 63 else _ZERO
            starts &= ~inside
            if following < BLOCK_BYTES:
                starts |= _ONE << following
            else:
                _set(state, _STARTS, _get(state, _STARTS) | _ONE << (following - np.uint64(BLOCK_BYTES)))
                _set(state, _NO_STARTS, _get(state, _NO_STARTS) | _bits(bit + size - BLOCK_BYTES))
    return starts


@inner
def _shifted(mask: np.uint64, state: int, name: int) -> np.uint64:
    """The mask shifted by one byte: a bit is set where the byte before it is in the mask. The last bit is kept in `state`."""
    before = mask << _ONE | _get(state, name)
    _set(state, name, mask >> _LAST)
    return before


@inner
def _number_starts(numbers: np.uint64, tails: np.uint64, before: np.uint64, state: int) -> np.uint64:
    """Every third number of a run, from its first; `before` is the mask of bytes after a number."""
    starts = numbers & ~before
    length = _get(state, _NUMBER_LENGTH) if before & _ONE else _ZERO
    if (
        not (numbers & tails)
        and not (before & _ONE)
        and not (numbers & numbers >> _ONE & numbers >> np.uint64(2) & numbers >> _THREE)
    ):
        _set(state, _NUMBER_LENGTH, np.uint64(leading_zeros(~numbers)))
        return starts
    waiting = numbers & ~tails
    while waiting:
        bit = waiting & (~waiting + _ONE)
        waiting ^= bit
        if not before & bit:
            length = _ZERO
        if length % _THREE == 0:
            starts |= bit
        length += _ONE
    _set(state, _NUMBER_LENGTH, length)
    return starts


@inner
def _after_line_breaks(
    at: int, end: int, classes: int, line_breaks: np.uint64, blanks: np.uint64, newlines: np.uint64, state: int
) -> np.uint64:
    """Of these line breaks, which white space without line breaks follows, mark the byte after each that is its run's last."""
    starts = _ZERO
    while line_breaks:
        bit = trailing_zeros(line_breaks)
        line_breaks &= line_breaks - _ONE
        stop = bit + 1
        if bit < 63:
            stop += trailing_zeros(~(blanks >> np.uint64(bit + 1)))
        if stop < BLOCK_BYTES:
            ends_in_newline = (newlines >> np.uint64(stop)) & _ONE != 0
        else:
            following = at + min(stop, BLOCK_BYTES)
            while following < end and (load8(following) & 0xC0 == 0x80 or class_at(following, classes) == SPACE):
                following += 1
            ends_in_newline = following < end and (load8(following) == 0x0A or load8(following) == 0x0D)
        if not ends_in_newline:
            if bit < 63:
                starts |= _ONE << np.uint64(bit + 1)
            else:
                _set(state, _STARTS, _get(state, _STARTS) | _ONE)
    return starts


@inner
def word_starts(pattern: int, at: int, end: int, classes: int, state: int) -> np.uint64:
    """The bytes of the block at `at` at which words start, the first in the lowest bit; bits after the text's end are not set.

    For GPT-2, Llama 3, Qwen 2 and those like them. The other patterns' code is apart, so that a tokenizer does not wait for the
    compiler of all.
    Addresses: `at` and `end` of valid UTF-8 with PADDING_BYTES after it; `classes` of `character_classes.table`; `state` of
    STATE_SIZE uint64, zero at the start of a text.
    """
    letters, numbers, spaces, newlines, blanks, apostrophes, wide, tails = character_masks(at)
    valid = _bits(end - at)
    letters &= valid
    numbers &= valid
    spaces &= valid
    newlines &= valid
    tails &= valid
    wide &= valid
    next_block = at + BLOCK_BYTES
    non_space_next = _ZERO
    if next_block < end:
        if load8(next_block) & 0xC0 == 0x80:
            non_space_next = _ZERO
        elif not is_white_space(next_block, classes):
            non_space_next = _ONE
    lasts = spaces & ((valid & ~spaces) >> _ONE | non_space_next << _LAST)
    if wide:
        wide_letters, wide_numbers, wide_spaces, wide_lasts = _wide_characters(at, end, classes, wide, tails)
        letters |= wide_letters
        numbers |= wide_numbers
        spaces |= wide_spaces
        lasts = (lasts & ~(wide_spaces >> _ONE)) | wide_lasts
    others = valid & ~(letters | numbers | spaces)
    forced, forbidden = _get(state, _STARTS) & valid, _get(state, _NO_STARTS)
    _set(state, _STARTS, _ZERO)
    _set(state, _NO_STARTS, _ZERO)
    after_letters = _shifted(letters, state, _LETTERS_BEFORE)
    after_numbers = _shifted(numbers, state, _NUMBERS_BEFORE)
    after_blanks = _shifted(blanks, state, _BLANKS_BEFORE)
    after_others = _shifted(others, state, _OTHERS_BEFORE)
    if pattern == GPT2:
        runs = (letters & ~after_letters) | (numbers & ~after_numbers) | (others & ~after_others)
        starts = (spaces & ~_shifted(spaces, state, _SPACES_BEFORE)) | lasts | (runs & ~after_blanks)
        starts = (starts & ~forbidden) | forced
        return _with_contractions(at, end, starts, apostrophes & starts, 0, state) & valid
    first_absorbed = newlines & (after_others | _get(state, _ABSORBED_BEFORE))
    absorbed = newlines & ~(newlines + first_absorbed)
    _set(state, _ABSORBED_BEFORE, absorbed >> _LAST)
    spaces &= ~absorbed
    indents = spaces & ~newlines
    openers = others & ~after_others & ~after_blanks
    reaching = openers
    if wide:
        for _ in range(3):
            reaching |= (reaching << _ONE | _get(state, _OPENERS_BEFORE)) & tails & others
    after_absorbers = _shifted(indents, state, _INDENTS_BEFORE) | _shifted(reaching, state, _OPENERS_BEFORE)
    starts = (spaces & ~_shifted(spaces, state, _SPACES_BEFORE)) | (lasts & ~newlines) | openers
    starts |= letters & ~after_letters & ~after_absorbers
    starts |= numbers & ~tails if pattern == QWEN2 else _number_starts(numbers, tails, after_numbers, state)
    next_is_indent = _ZERO
    if next_block < end and class_at(next_block, classes) == SPACE and (load8(next_block) & 0xC0) != 0x80:
        next_is_indent = _ONE
    indented = newlines & spaces & (indents >> _ONE | next_is_indent << _LAST)
    if indented:
        starts |= _after_line_breaks(at, end, classes, indented, indents, newlines, state)
    starts = (starts & ~forbidden) | forced
    return _with_contractions(at, end, starts, apostrophes & starts, 0x20, state) & valid


@inner
def word_starts_by_case(pattern: int, at: int, end: int, classes: int, state: int) -> np.uint64:
    """`word_starts` for Tekken and o200k."""
    word = signed(_get(state, _NEXT_WORD))
    if word == 0:
        word = at
    starts = _ZERO
    while word < min(at + BLOCK_BYTES, end):
        starts |= _ONE << np.uint64(word - at)
        word = cased_words.word_end(pattern == O200K, word, end, classes)
    _set(state, _NEXT_WORD, np.uint64(word))
    return starts


@inner
def word_starts_by_script(pattern: int, at: int, end: int, classes: int, state: int) -> np.uint64:
    """`word_starts` for Kimi."""
    word = signed(_get(state, _NEXT_WORD))
    if word == 0:
        word = at
    starts = _ZERO
    while word < min(at + BLOCK_BYTES, end):
        starts |= _ONE << np.uint64(word - at)
        word = han_words.word_end(word, end, classes)
    _set(state, _NEXT_WORD, np.uint64(word))
    return starts


@inner
def word_starts_in_sequence(pattern: int, at: int, end: int, classes: int, state: int) -> np.uint64:
    """`word_starts` for DeepSeek and StarCoder."""
    word = signed(_get(state, _NEXT_WORD))
    if word == 0:
        word = at
    starts = _ZERO
    while word < min(at + BLOCK_BYTES, end):
        starts |= _ONE << np.uint64(word - at)
        if pattern == DEEPSEEK:
            word = split_sequences.deepseek_word_end(word, end, classes)
        else:
            word = split_sequences.starcoder_word_end(word, end, classes)
    _set(state, _NEXT_WORD, np.uint64(word))
    return starts
