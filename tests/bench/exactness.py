"""Compare the ids of every document with those of the library that defines the tokenizer."""

import functools
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import corpus
import models
import peers

BATCH_BYTES = 16 * peers.MIB

Encode = Callable[[list[str]], list[list[int]]]


class Comparison(NamedTuple):
    """`different` are the numbers of the documents, from 0, whose ids differ."""

    documents: int
    text_bytes: int
    different: list[int]


def _reference(model: models.Model, threads: int) -> Encode:
    if model.tiktoken is None:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(model.native))
        return lambda texts: processor.encode(texts, out_type=int, num_threads=threads)
    encoding = model.tiktoken()
    if model.normal_form is None:
        return lambda texts: encoding.encode_ordinary_batch(texts, num_threads=threads)
    normalize = functools.partial(unicodedata.normalize, model.normal_form)
    return lambda texts: encoding.encode_ordinary_batch(list(map(normalize, texts)), num_threads=threads)


def compare(model: models.Model, texts: Path, threads: int) -> Comparison:
    """Encode all documents of a texts file with lt-preprocess and with the reference."""
    import numpy as np

    from lt_preprocess.texts import Texts
    from lt_preprocess.tokenizers import loading
    from lt_shared.tokenizers import tokenizer_files

    encoder = loading.load(tokenizer_files.find(model.native)).new_encoder()
    reference = _reference(model, threads)
    documents = text_bytes = 0
    different = []
    for size, batch in peers.batches(corpus.load_texts(texts), BATCH_BYTES):
        ids, lengths = encoder.encode(Texts.from_list(batch))
        expected = reference([document.decode() for document in batch])
        for number, (found, wanted) in enumerate(zip(np.split(ids, np.cumsum(lengths)[:-1]), expected, strict=True), documents):
            if found.tolist() != wanted:
                different.append(number)
        documents += len(batch)
        text_bytes += size
    return Comparison(documents, text_bytes, different)
