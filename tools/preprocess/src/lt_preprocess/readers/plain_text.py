"""A plain text file is one unchanged document. An empty file is a bad line, because most empty files are failed copies."""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from lt_preprocess.readers.batch import BadLine, Batch, ChunkLines, Column
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.texts import Texts
from lt_shared.data.document_origins.origins import Kind


@dataclasses.dataclass(frozen=True)
class TextChunk(Chunk):
    """The text is a document whatever the keys are; `read` is called by a worker."""

    read: Callable[[], bytes]

    kind: ClassVar[Kind] = "text"

    def batch(self, json_keys: tuple[str, ...]) -> Batch:
        from lt_preprocess.readers import json_line, utf8

        content = self.read()
        texts = Texts.from_list([content] if content else [])
        if not content or utf8.invalid(texts):
            reason = json_line.invalid_utf8(content, "text") if content else "the file is empty: a failed copy, or no document"
            bad = BadLine(self.source, 0, reason, content, lambda: 1)
            return Batch([Column(Texts.from_list([]), np.zeros(0, np.int64))], [bad], ChunkLines(0, 1, [0]))
        return Batch([Column(texts, np.ones(1, np.int64))], [], ChunkLines(0, 1, []))
