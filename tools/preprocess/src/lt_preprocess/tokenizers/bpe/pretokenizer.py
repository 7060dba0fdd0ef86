r"""Split UTF-8 text into the words within which byte pairs are merged, as the regular expressions of GPT-2 and Llama 3 do.

GPT-2:     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
Llama 3:   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
           \s*[\r\n]+|\s+(?!\S)|\s+
Qwen 2:    Llama 3's with \p{N} for \p{N}{1,3}
Qwen 3.5:  Qwen 2's with [\p{L}\p{M}] for \p{L}: the code for Qwen 2 with another table of character classes
cl100k:    Llama 3's, but for the white space at the end of a text; see `byte_level`
StarCoder: \p{N}, then GPT-2's pattern on the text between the numbers
Tekken, o200k and Kimi cut between cases too; see `cased_blocks`. DeepSeek splits three times; see `deepseek_blocks`.

The text is read in blocks of 64 bytes. Vector compares give one bit mask per character class, and some sixty operations on these
masks give the bytes at which words start. Only rare text is read character by character: text outside ASCII, contractions, long
numbers, indentation. English takes 0.4 ns per byte this way; a loop over characters took 5."""

import numpy as np

from lt_preprocess.compiler.intrinsics import load8, load64, store64, trailing_zeros
from lt_preprocess.compiler.jit import inner
from lt_preprocess.compiler.simd import BLOCK_BYTES, character_masks
from lt_preprocess.tokenizers.bpe.blocks import (
    ABSORBED_BEFORE,
    BLANKS_BEFORE,
    INDENTS_BEFORE,
    LAST,
    LETTERS_BEFORE,
    NO_STARTS,
    NUMBERS_BEFORE,
    ONE,
    OPENERS_BEFORE,
    OTHERS_BEFORE,
    SPACES_BEFORE,
    STARTS,
    ZERO,
    after_line_breaks,
    low_bits,
    number_starts,
    shifted,
)
from lt_preprocess.tokenizers.bpe.blocks import STATE_SIZE as STATE_SIZE
from lt_preprocess.tokenizers.bpe.cased_blocks import word_starts_by_case as word_starts_by_case
from lt_preprocess.tokenizers.bpe.cased_blocks import word_starts_by_script as word_starts_by_script
from lt_preprocess.tokenizers.bpe.character_classes import LETTER, NUMBER, SPACE
from lt_preprocess.tokenizers.bpe.characters import class_at, contraction_end, is_white_space, width
from lt_preprocess.tokenizers.bpe.deepseek_blocks import word_starts_in_three_splits as word_starts_in_three_splits
from lt_preprocess.tokenizers.pattern_codes import GPT2, QWEN2, STARCODER


@inner
def _wide_characters(
    at: int, end: int, classes: int, wide: np.uint64, tails: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """The bytes of the block's letters, numbers and white space outside ASCII, and which white space a non-space follows."""
    letters, numbers, spaces, lasts = ZERO, ZERO, ZERO, ZERO
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
        if kind >= LETTER:
            letters |= bits
        elif kind == NUMBER:
            numbers |= bits
        elif kind == SPACE:
            spaces |= bits
            if character >= at and character + size < end and not is_white_space(character + size, classes):
                lasts |= ONE << np.uint64(character - at)
    return letters, numbers, spaces, lasts


@inner
def _with_contractions(at: int, end: int, starts: np.uint64, apostrophes: np.uint64, lower: int, state: int) -> np.uint64:
    """Let a word start after a contraction, not within it. An apostrophe that starts a word begins a contraction."""
    while apostrophes:
        bit = trailing_zeros(apostrophes)
        apostrophes &= apostrophes - ONE
        size = contraction_end(at + bit, end, lower) - at - bit
        if size:
            following = np.uint64(bit + size)
            inside = low_bits(size - 1) << np.uint64(bit + 1) if bit < 63 else ZERO
            starts &= ~inside
            if following < BLOCK_BYTES:
                starts |= ONE << following
            else:
                store64(state + STARTS, load64(state + STARTS) | ONE << (following - np.uint64(BLOCK_BYTES)))
                store64(state + NO_STARTS, load64(state + NO_STARTS) | low_bits(bit + size - BLOCK_BYTES))
    return starts


@inner
def _number_follows(at: int, end: int, classes: int, lasts: np.uint64, numbers: np.uint64, wide: np.uint64) -> np.uint64:
    """Of the block's white space that is the last of its run, what a number follows."""
    next_block = at + BLOCK_BYTES
    followed = lasts & numbers >> ONE
    if next_block < end and load8(next_block) & 0xC0 != 0x80 and class_at(next_block, classes) == NUMBER:
        followed |= lasts & ONE << LAST
    wide_lasts = lasts & wide
    while wide_lasts:
        bit = trailing_zeros(wide_lasts)
        wide_lasts &= wide_lasts - ONE
        following = at + bit + width(load8(at + bit))
        if following < end and class_at(following, classes) == NUMBER:
            followed |= ONE << np.uint64(bit)
    return followed


@inner
def word_starts(pattern: int, at: int, end: int, classes: int, state: int) -> np.uint64:
    """Return the mask of word starts in the block at `at`; the first byte has the lowest bit, and bits after the end are 0.

    For GPT-2, StarCoder, Llama 3, Qwen 2 and similar patterns. The other patterns' code is separate, so that a tokenizer does not
    wait for the compilation of every pattern. Addresses: `at` and `end` of valid UTF-8 with PADDING_BYTES after it; `classes` of
    `character_classes.table`; `state` of STATE_SIZE uint64, zero at the start of a text.
    """
    letters, numbers, spaces, newlines, blanks, apostrophes, wide, tails = character_masks(at)
    valid = low_bits(end - at)
    letters &= valid
    numbers &= valid
    spaces &= valid
    newlines &= valid
    tails &= valid
    wide &= valid
    next_block = at + BLOCK_BYTES
    non_space_next = ZERO
    if next_block < end:
        if load8(next_block) & 0xC0 == 0x80:
            non_space_next = ZERO
        elif not is_white_space(next_block, classes):
            non_space_next = ONE
    lasts = spaces & ((valid & ~spaces) >> ONE | non_space_next << LAST)
    if wide:
        wide_letters, wide_numbers, wide_spaces, wide_lasts = _wide_characters(at, end, classes, wide, tails)
        letters |= wide_letters
        numbers |= wide_numbers
        spaces |= wide_spaces
        lasts = (lasts & ~(wide_spaces >> ONE)) | wide_lasts
    others = valid & ~(letters | numbers | spaces)
    forced, forbidden = load64(state + STARTS) & valid, load64(state + NO_STARTS)
    store64(state + STARTS, ZERO)
    store64(state + NO_STARTS, ZERO)
    after_letters = shifted(letters, state + LETTERS_BEFORE)
    after_numbers = shifted(numbers, state + NUMBERS_BEFORE)
    after_blanks = shifted(blanks, state + BLANKS_BEFORE)
    after_others = shifted(others, state + OTHERS_BEFORE)
    # No branch per word: a regular expression engine, like a loop over characters, spends most of its time on branches that the
    # processor cannot predict.
    if (pattern == GPT2) | (pattern == STARCODER):
        # A run of letters, numbers or others is a word, together with a blank before it. Of a run of white space, the last
        # character stands alone unless it is such a blank or the text ends.
        runs = (letters & ~after_letters) | (others & ~after_others)
        if pattern == GPT2:
            runs |= numbers & ~after_numbers
        else:
            # To StarCoder's second split a piece between numbers is a text: white space before a number is one word.
            lasts &= ~_number_follows(at, end, classes, lasts, numbers, wide)
        starts = (spaces & ~shifted(spaces, state + SPACES_BEFORE)) | lasts | (runs & ~after_blanks)
        if pattern == STARCODER:
            starts |= numbers & ~tails
        starts = (starts & ~forbidden) | forced
        return _with_contractions(at, end, starts, apostrophes & starts, 0, state) & valid
    # Llama 3: a run of letters is a word, with the one space (no line break) or single other character before it. Numbers are cut
    # after three digits. A run of others is a word with a blank before and the line breaks after it. Of the remaining white
    # space, a word ends after the last line break, and the last character stands alone unless it belongs to the following word
    # or the text ends.
    first_absorbed = newlines & (after_others | load64(state + ABSORBED_BEFORE))
    absorbed = newlines & ~(newlines + first_absorbed)
    store64(state + ABSORBED_BEFORE, absorbed >> LAST)
    spaces &= ~absorbed
    indents = spaces & ~newlines
    openers = others & ~after_others & ~after_blanks
    reaching = openers
    if wide:
        for _ in range(3):
            reaching |= (reaching << ONE | load64(state + OPENERS_BEFORE)) & tails & others
    after_absorbers = shifted(indents, state + INDENTS_BEFORE) | shifted(reaching, state + OPENERS_BEFORE)
    starts = (spaces & ~shifted(spaces, state + SPACES_BEFORE)) | (lasts & ~newlines) | openers
    starts |= letters & ~after_letters & ~after_absorbers
    starts |= numbers & ~tails if pattern == QWEN2 else number_starts(numbers, tails, after_numbers, state)
    next_is_indent = ZERO
    if next_block < end and class_at(next_block, classes) == SPACE and (load8(next_block) & 0xC0) != 0x80:
        next_is_indent = ONE
    indented = newlines & spaces & (indents >> ONE | next_is_indent << LAST)
    if indented:
        starts |= after_line_breaks(at, end, classes, indented, indents, newlines, state)
    starts = (starts & ~forbidden) | forced
    return _with_contractions(at, end, starts, apostrophes & starts, 0x20, state) & valid
