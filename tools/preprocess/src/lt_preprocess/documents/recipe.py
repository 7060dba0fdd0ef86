"""How the chunks of an input become documents: which fields are read, which documents are left out, how texts are formed."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

from lt_preprocess.documents import template_filter
from lt_preprocess.documents.conversation_filter import RECORD_KEY, Conversations
from lt_preprocess.documents.document_form import DocumentForm
from lt_preprocess.documents.loss_mask import LossMask, TokenBytes
from lt_preprocess.documents.special_token_filter import without_forbidden
from lt_preprocess.readers import text_template
from lt_preprocess.readers.batch import Batch
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.tokenizers.base import Encoder, Tokenizer

Filter = Callable[[Chunk, Batch, Encoder], Batch]
"""Returns a batch of the chunk without some documents, whose lines become bad lines, or with other texts. Called by workers."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """`json_keys` are the columns to read; `filters` are applied in order before documents are encoded and given their form.

    `text_keys` name the columns after the filters, which a template has joined to one. `loss_mask` is set for conversations.
    """

    json_keys: tuple[str, ...]
    text_keys: tuple[str, ...]
    form: DocumentForm
    filters: Sequence[Filter]
    loss_mask: LossMask | None = None

    def batch(self, chunk: Chunk, encoder: Encoder) -> Batch:
        """Parse a chunk and apply the filters."""
        batch = chunk.batch(self.json_keys)
        for apply in self.filters:
            batch = apply(chunk, batch, encoder)
        return batch

    def prepare(self) -> None:
        """Compile the kernels, so that threads do not wait for each other."""
        self.form.prepare()
        if self.loss_mask is not None:
            self.loss_mask.form.prepare()


def make(json_keys: tuple[str, ...], template: str | None, form: DocumentForm) -> Recipe:
    """The recipe for texts under `json_keys`, or for one text that `template` makes of several fields."""
    filters: list[Filter] = [functools.partial(without_forbidden, json_keys=json_keys)]
    if template is None:
        return Recipe(json_keys, json_keys, form, filters)
    fields = text_template.parse(template)
    return Recipe(fields.json_keys, json_keys, form, [functools.partial(template_filter.filled, template=fields), *filters])


def of_conversations(json_key: str, conversations: Conversations, form: DocumentForm, tokenizer: Tokenizer) -> Recipe:
    """The recipe for the records of chat files, whose texts are called `json_key`."""
    loss_mask = LossMask.beside(form, TokenBytes(tokenizer))
    return Recipe((RECORD_KEY,), (json_key,), form, [conversations.render], loss_mask)
