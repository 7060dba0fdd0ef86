"""Cut documents that have more than a number of tokens into several documents.

Every piece is a document like any other: it begins with the beginning-of-document token and ends with the end-of-document token
if documents do, and these count. A trainer that shuffles documents then never runs from a piece into another text without the
token between them. The pieces of a document follow each other and hold its tokens in order; a sequence that goes over a cut is
cut, too.
"""

import numpy as np
import numpy.typing as npt

from lt_preprocess.compiler.jit import kernel
from lt_preprocess.texts import Lengths


@kernel
def _cut(
    text_lengths: Lengths,
    texts_per_document: Lengths,
    capacity: int,
    piece_lengths: Lengths,
    texts_per_piece: Lengths,
    documents_of_pieces: Lengths,
) -> tuple[int, int]:
    """Fill the outputs; returns the number of pieces of texts and of documents."""
    text = part = piece = 0
    for document in range(len(texts_per_document)):
        free = capacity
        texts_per_piece[piece] = 0
        documents_of_pieces[piece] = document
        for _ in range(texts_per_document[document]):
            remaining = text_lengths[text]
            text += 1
            while remaining:
                if not free:
                    piece += 1
                    texts_per_piece[piece] = 0
                    documents_of_pieces[piece] = document
                    free = capacity
                length = min(remaining, free)
                piece_lengths[part] = length
                texts_per_piece[piece] += 1
                part += 1
                remaining -= length
                free -= length
        piece += 1
    return part, piece


def cut(text_lengths: Lengths, texts_per_document: Lengths, capacity: int) -> tuple[Lengths, Lengths, npt.NDArray[np.int64]]:
    """Cut documents so that none has more than `capacity` tokens of text.

    Returns int64 arrays: the tokens per piece of a text, and for every piece of a document the number of its texts and the number
    of its document. Texts without tokens vanish; a document without tokens stays one.
    """
    documents = len(texts_per_document)
    cuts = int((text_lengths // capacity).sum()) + len(text_lengths)
    piece_lengths = np.empty(len(text_lengths) + cuts, np.int64)
    texts_per_piece, documents_of_pieces = np.empty((2, documents + cuts), np.int64)
    parts, pieces = _cut(text_lengths, texts_per_document, capacity, piece_lengths, texts_per_piece, documents_of_pieces)
    return piece_lengths[:parts], texts_per_piece[:pieces], documents_of_pieces[:pieces]
