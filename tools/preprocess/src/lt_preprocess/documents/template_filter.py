"""Join the fields of documents to one text, by a template."""

import numpy as np

from lt_preprocess.documents.special_token_filter import without_documents
from lt_preprocess.readers.batch import Batch, Column
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.readers.text_template import Template
from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers.base import Encoder


def filled(chunk: Chunk, batch: Batch, encoder: Encoder, template: Template) -> Batch:
    """Apply `fill` as a filter."""
    return fill(chunk, batch, template)


def fill(chunk: Chunk, batch: Batch, template: Template) -> Batch:
    """Replace the columns of the fields by one column of texts. A document with a list in a field becomes a bad line."""
    reasons: dict[int, str] = {}
    for field, column in zip(template.fields, batch.columns, strict=True):
        for document in np.flatnonzero(column.texts_per_document > 1).tolist():
            reasons.setdefault(document, f"{field!r} is a list, and a template takes strings")
    batch = without_documents(chunk, batch, template.json_keys, reasons)
    values = [_value_of_each_document(column) for column in batch.columns]
    texts = [template.fill(list(fields)) for fields in zip(*values, strict=True)]
    column = Column(Texts.from_list([text for text in texts if text]), np.array([bool(text) for text in texts], np.int64))
    is_empty = [column.texts_per_document == 0 for column in batch.columns]
    optional = [flags for flags, is_optional in zip(is_empty, template.is_optional, strict=True) if is_optional]
    empty_fields = np.stack(optional, axis=1) if optional else None
    return batch._replace(columns=[column], empty_fields=empty_fields)


def _value_of_each_document(column: Column) -> list[bytes]:
    texts = iter(column.texts.to_list())
    return [next(texts) if count else b"" for count in column.texts_per_document.tolist()]
