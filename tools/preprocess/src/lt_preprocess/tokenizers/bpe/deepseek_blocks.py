r"""Words of DeepSeek's pre-tokenizer, which splits text three times, a block of 64 bytes at a time, as `pretokenizer` does.

    \p{N}{1,3}, then [\u4e00-\u9fa5\u3040-\u30ff]+, then
    ASCII punctuation and [A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ | ?[\p{P}\p{S}]+[\r\n]* |
    \s*[\r\n]+ | \s+(?!\S) | \s+

For a later split, a piece that an earlier split cut out is the end of the text: all white space before a number is one word.
Words are runs of characters of one class: letters and marks, numbers, ideographs, punctuation and symbols, white space, others
(control characters and unassigned code points). Numbers are cut after three digits. The third split also cuts runs of ideographs,
at the punctuation, symbols and unassigned code points among them: signs and strays.

No mask needs more than the character after the block. A character at a time this took twice as long as the rest of the encoding.
"""

import numpy as np

from lt_preprocess.compiler.intrinsics import load8, load64, store64, trailing_zeros
from lt_preprocess.compiler.jit import inner
from lt_preprocess.compiler.simd import BLOCK_BYTES, character_masks, control_mask
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
from lt_preprocess.tokenizers.bpe.character_classes import (
    IDEOGRAPH,
    LETTER,
    NEWLINE,
    NUMBER,
    OTHER,
    PUNCTUATION,
    SIGN,
    SPACE,
)
from lt_preprocess.tokenizers.bpe.characters import class_at, width

_PUNCTUATION_BEFORE, _IDEOGRAPHS_BEFORE, _ATTACHED_BEFORE = LOWERS_BEFORE, CASELESS_BEFORE, LAST_WORD
_SIGNS_BEFORE, _STRAYS_BEFORE = HAN_BEFORE, UNCLEAR_BEFORE


@inner
def _splits_off(kind: np.uint8) -> np.bool_:
    """Whether the white space before a character of this class ends as at the end of the text, or goes on."""
    return kind >= IDEOGRAPH or NUMBER <= kind <= NEWLINE


@inner
def _wide_characters(
    at: int, end: int, classes: int, wide: np.uint64, tails: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64, np.uint64]:
    """The bytes of letters, numbers, white space, punctuation and ideographs outside ASCII; and two masks of first bytes.

    These are of the white space that stands alone, and of the others that a letter follows. The last two masks are of the
    ideographs that are signs and strays.
    """
    letters, numbers, spaces, punctuation, ideographs = ZERO, ZERO, ZERO, ZERO, ZERO
    signs, strays = ZERO, ZERO
    lasts, prefixes = ZERO, ZERO
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
        elif kind == IDEOGRAPH:
            ideographs |= bits
        elif kind == PUNCTUATION:
            punctuation |= bits
        elif kind == NUMBER:
            numbers |= bits
        elif kind >= SIGN:
            ideographs |= bits
            if kind == SIGN:
                signs |= bits
            else:
                strays |= bits
                if character >= at and character + size < end and class_at(character + size, classes) == IDEOGRAPH:
                    prefixes |= ONE << np.uint64(character - at)
        else:
            if kind == SPACE:
                spaces |= bits
            if character >= at and character + size < end:
                following = class_at(character + size, classes)
                if kind == SPACE and not _splits_off(following):
                    lasts |= ONE << np.uint64(character - at)
                if kind == OTHER and following == LETTER:
                    prefixes |= ONE << np.uint64(character - at)
    return letters, numbers, spaces, punctuation, ideographs, lasts, prefixes, signs, strays


@inner
def word_starts_in_three_splits(pattern: int, at: int, end: int, classes: int, state: int) -> np.uint64:
    """As `pretokenizer.word_starts`."""
    ascii_letters, numbers, spaces, newlines, blanks, _, wide, tails = character_masks(at)
    valid = low_bits(end - at)
    ascii_letters &= valid
    numbers &= valid
    spaces &= valid
    newlines &= valid
    tails &= valid
    wide &= valid
    letters, narrow = ascii_letters, valid & ~wide
    others = control_mask(at) & narrow & ~spaces
    punctuation = narrow & ~(letters | numbers | spaces | others)
    ascii_punctuation, ascii_spaces, ascii_others = punctuation, spaces, others
    ideographs, lasts, prefixes, cuts = ZERO, ZERO, ZERO, ZERO
    if wide:
        wide_letters, wide_numbers, wide_spaces, wide_punctuation, ideographs, lasts, prefixes, signs, strays = _wide_characters(
            at, end, classes, wide, tails
        )
        # A run of signs is a word, and a run of strays, whose last one belongs to the letters that follow (`prefixes`). A block
        # without wide characters leaves old bits in the state, which do no harm: an ideograph after it begins a word anyway.
        after_signs = shifted(signs, state + _SIGNS_BEFORE)
        cuts = (signs & ~after_signs) | (ideographs & ~signs & after_signs) | (strays & ~shifted(strays, state + _STRAYS_BEFORE))
        letters |= wide_letters
        numbers |= wide_numbers
        spaces |= wide_spaces
        punctuation |= wide_punctuation
        others |= wide & ~(wide_letters | wide_numbers | wide_spaces | wide_punctuation | ideographs)
    next_block = at + BLOCK_BYTES
    stands_alone_next, next_is_indent, next_is_letter = ZERO, ZERO, ZERO
    if next_block < end and (load8(next_block) & 0xC0) != 0x80:
        kind = class_at(next_block, classes)
        stands_alone_next = ZERO if _splits_off(kind) else ONE
        next_is_indent = ONE if kind == SPACE else ZERO
        next_is_letter = ONE if kind == LETTER else ZERO
    # Of the white space that no word before it includes, a word ends after the last line break. The last character stands alone
    # unless it belongs to the following word, or a number, an ideograph or the end of the text follows.
    lasts |= ascii_spaces & ((letters | punctuation | others) >> ONE | stands_alone_next << LAST)
    # A run of others is a word, which no alternative matches; but its last character belongs to the letters that follow.
    prefixes |= ascii_others & (letters >> ONE | next_is_letter << LAST)
    forced = load64(state + STARTS) & valid
    store64(state + STARTS, ZERO)
    after_letters = shifted(letters, state + LETTERS_BEFORE)
    after_numbers = shifted(numbers, state + NUMBERS_BEFORE)
    after_blanks = shifted(blanks, state + BLANKS_BEFORE)
    after_punctuation = shifted(punctuation, state + _PUNCTUATION_BEFORE)
    after_others = shifted(others, state + OTHERS_BEFORE)
    # A run of punctuation is a word with a blank before and the line breaks after it.
    first_absorbed = newlines & (after_punctuation | load64(state + ABSORBED_BEFORE))
    absorbed = newlines & ~(newlines + first_absorbed)
    store64(state + ABSORBED_BEFORE, absorbed >> LAST)
    spaces &= ~absorbed
    indents = spaces & ~newlines
    openers = punctuation & ~after_punctuation & ~after_blanks
    # ASCII punctuation that starts a word and an ASCII letter after it are a word with the ASCII letters that follow; if other
    # letters follow these, they are the next word.
    first_attached = ascii_letters & (
        shifted(openers & ascii_punctuation, state + OPENERS_BEFORE) | load64(state + _ATTACHED_BEFORE)
    )
    attached = ascii_letters & ~(ascii_letters + first_attached)
    after_attached = shifted(attached, state + _ATTACHED_BEFORE)
    starts = (spaces & ~shifted(spaces, state + SPACES_BEFORE)) | (lasts & ~newlines) | openers
    # A run of letters is a word, with the one space (no line break) or other character before it.
    starts |= letters & ~after_letters & ~shifted(indents, state + INDENTS_BEFORE) & ~after_others & ~first_attached
    starts |= letters & ~ascii_letters & ~tails & after_attached
    starts |= (others & ~after_others) | prefixes
    starts |= ideographs & ~shifted(ideographs, state + _IDEOGRAPHS_BEFORE)
    starts |= cuts
    starts |= number_starts(numbers, tails, after_numbers, state)
    indented = newlines & spaces & (indents >> ONE | next_is_indent << LAST)
    if indented:
        starts |= after_line_breaks(at, end, classes, indented, indents, newlines, state)
    within: np.uint64 = (starts | forced) & valid
    return within
