"""Documents are assembled as Megatron's preprocess_data.py assembles them, and cut only between documents."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lt_preprocess.documents import assembly

EOD = 999
DOCUMENTS = st.lists(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=4), max_size=8)


def megatron_documents(documents: list[list[list[int]]], eod: int | None) -> tuple[list[int], list[int], list[int]]:
    """The rule of preprocess_data.py's Encoder.encode, one document after the other."""
    tokens: list[int] = []
    lengths: list[int] = []
    sequences: list[int] = []
    for texts in documents:
        document_lengths = [len(ids) for ids in texts if ids]
        tokens.extend(number for ids in texts for number in ids)
        if document_lengths and eod is not None:
            tokens.append(eod)
            document_lengths[-1] += 1
        lengths.extend(document_lengths)
        sequences.append(len(document_lengths))
    return tokens, lengths, sequences


def to_lists(made: assembly.Documents) -> tuple[list[int], list[int], list[int]]:
    return made.tokens.tolist(), made.sequence_lengths.tolist(), made.sequences_per_document.tolist()


def assembled(documents: list[list[list[int]]]) -> assembly.Documents:
    texts = [ids for document in documents for ids in document]
    return assembly.assemble(
        np.array([number for ids in texts for number in ids], np.int32),
        np.array([len(ids) for ids in texts], np.int64),
        np.array([len(document) for document in documents], np.int64),
        EOD,
        np.uint16,
    )


@given(DOCUMENTS, st.sampled_from([None, EOD]), st.sampled_from([np.uint16, np.int32]))
def test_assemble(documents: list[list[list[int]]], eod: int | None, dtype: type[np.generic]) -> None:
    texts = [ids for document in documents for ids in document]
    made = assembly.assemble(
        np.array([number for ids in texts for number in ids], np.int32),
        np.array([len(ids) for ids in texts], np.int64),
        np.array([len(document) for document in documents], np.int64),
        eod,
        dtype,
    )
    assert made.tokens.dtype == dtype
    assert to_lists(made) == megatron_documents(documents, eod)


@given(DOCUMENTS, st.integers(0, 8))
def test_cutting_between_documents(documents: list[list[list[int]]], number: int) -> None:
    number = min(number, len(documents))
    whole = assembled(documents)
    assert to_lists(whole.before(number)) == megatron_documents(documents[:number], EOD)
    assert to_lists(whole.since(number)) == megatron_documents(documents[number:], EOD)


@given(DOCUMENTS, st.integers(0, 40))
def test_documents_that_fit(documents: list[list[list[int]]], limit: int) -> None:
    sizes = [len(megatron_documents([document], EOD)[0]) for document in documents]
    expected = max(number for number in range(len(documents) + 1) if sum(sizes[:number]) <= limit)
    assert assembled(documents).fitting(limit) == expected
