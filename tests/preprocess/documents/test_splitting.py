"""Long documents are cut into documents of a bounded number of tokens, each with the tokens around it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lt_preprocess.documents import splitting
from lt_preprocess.documents.document_form import DocumentForm
from lt_preprocess.readers.batch import Column
from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers.base import Encoder, Ids

BOS, EOD = 300, 301


class ByteEncoder(Encoder):
    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        return np.frombuffer(b"".join(texts.to_list()), np.uint8).astype(np.int32), np.diff(texts.offsets)


def by_hand(documents: list[list[bytes]], capacity: int) -> tuple[list[list[list[int]]], list[int]]:
    """Byte for byte: the sequences of every document that is made, and the document that it was cut from."""
    made, sources = [], []
    for number, texts in enumerate(documents):
        pieces: list[list[list[int]]] = [[]]
        free = capacity
        for text in texts:
            is_new = True
            for byte in text:
                if free == 0:
                    pieces.append([])
                    free, is_new = capacity, True
                if is_new:
                    pieces[-1].append([])
                    is_new = False
                pieces[-1][-1].append(byte)
                free -= 1
        for piece in pieces:
            if piece:
                piece[0].insert(0, BOS)
                piece[-1].append(EOD)
            made.append(piece)
            sources.append(number)
    return made, sources


@given(st.lists(st.lists(st.binary(max_size=9), max_size=4), max_size=6), st.integers(1, 6))
def test_documents_are_cut_as_by_hand(documents: list[list[bytes]], capacity: int) -> None:
    texts = [text for document in documents for text in document]
    column = Column(Texts.from_list(texts), np.array([len(document) for document in documents], np.int64))
    form = DocumentForm(np.dtype(np.uint16), BOS, EOD, most_tokens=capacity + 2)
    made, sources = form.form(column, ByteEncoder())
    expected, expected_sources = by_hand(documents, capacity)
    assert made.tokens.tolist() == [token for document in expected for sequence in document for token in sequence]
    assert made.sequence_lengths.tolist() == [len(sequence) for document in expected for sequence in document]
    assert made.sequences_per_document.tolist() == [len(document) for document in expected]
    assert sources is not None and sources.tolist() == expected_sources


def test_a_document_of_exactly_the_most_tokens_stays_whole() -> None:
    lengths, per_piece, documents = splitting.cut(np.array([4, 5, 0]), np.array([1, 1, 1]), 4)
    assert (lengths.tolist(), per_piece.tolist(), documents.tolist()) == ([4, 4, 1], [1, 1, 1, 0], [0, 1, 1, 2])
