"""Find texts that are not valid UTF-8, compiled."""

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler import jit
from lt_preprocess.compiler.intrinsics import element_address
from lt_preprocess.compiler.jit import kernel
from lt_preprocess.compiler.simd import BLOCK_BYTES, utf8_errors
from lt_preprocess.texts import Texts

_MARGIN = np.zeros(3, np.uint8)


def invalid(texts: Texts, has_margin: bool = False) -> list[int]:
    """The numbers of the texts that are not valid UTF-8. With `has_margin`, three bytes before the first text may be read.

    The compiled scan may also mark a text because of the end of the text before it, so marked texts are decoded to be sure.
    """
    suspects = np.zeros(len(texts.offsets) - 1, np.bool_)
    if not jit.is_ready(_suspect, texts.data, texts.offsets, suspects):
        return [number for number in range(len(suspects)) if not _is_valid(texts, number)]
    if has_margin:
        count = _suspect(texts.data, texts.offsets, suspects)
    else:
        count = _suspect(np.concatenate([_MARGIN, texts.data]), texts.offsets + len(_MARGIN), suspects)
    if not count:
        return []
    return [number for number in np.flatnonzero(suspects).tolist() if not _is_valid(texts, number)]


def _is_valid(texts: Texts, number: int) -> bool:
    try:
        texts.data[texts.offsets[number] : texts.offsets[number + 1]].tobytes().decode()
    except UnicodeDecodeError:
        return False
    return True


@kernel
def _suspect(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], suspects: npt.NDArray[np.bool_]) -> int:
    """Mark the texts with invalid bytes or a truncated character at the end; returns how many."""
    count = 0
    for text in range(len(suspects)):
        at, end = offsets[text], offsets[text + 1]
        wrong = end > at and data[at] & 0xC0 == 0x80
        while at < end and not wrong:
            errors = utf8_errors(element_address(data, at))
            remaining = end - at
            if remaining < BLOCK_BYTES:
                errors &= (np.uint64(1) << np.uint64(remaining)) - np.uint64(1)
            wrong = errors != 0
            at += BLOCK_BYTES
        size = end - offsets[text]
        wrong |= size >= 1 and data[end - 1] >= 0xC0
        wrong |= size >= 2 and data[end - 2] >= 0xE0
        wrong |= size >= 3 and data[end - 3] >= 0xF0
        if wrong:
            suspects[text] = True
            count += 1
    return count
