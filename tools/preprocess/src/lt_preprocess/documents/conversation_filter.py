"""Render the conversations of a chunk by a chat template, and leave out those that the template refuses."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from lt_preprocess.conversations import records, turns
from lt_preprocess.conversations.chat_template import ChatTemplate
from lt_preprocess.conversations.records import Conversation
from lt_preprocess.conversations.turns import CountedText, TrainOn
from lt_preprocess.documents.special_token_filter import without_documents
from lt_preprocess.readers import text_keys
from lt_preprocess.readers.batch import Batch, Column
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.readers.json_line import Unusable
from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers.base import Encoder

RECORD_KEY = text_keys.record_of(records.KEYS)


@dataclasses.dataclass(frozen=True)
class Conversations:
    """How conversations become texts. `special_tokens` are the texts of the tokenizer's special tokens.

    With `rejects_special_tokens`, a message that spells out a special token makes a bad line. Otherwise it is
    encoded as the token, as in transformers.
    """

    template: ChatTemplate
    train_on: TrainOn
    special_tokens: Sequence[str]
    rejects_special_tokens: bool = False

    def render(self, chunk: Chunk, batch: Batch, encoder: Encoder) -> Batch:
        """Replace the column of records by one column of texts, as a filter."""
        reasons: dict[int, str] = {}
        texts: list[CountedText] = []
        for document, record in enumerate(batch.columns[0].texts.to_list()):
            try:
                texts.append(self._rendered(record))
            except Unusable as reason:
                reasons[document] = str(reason)
        batch = without_documents(chunk, batch, (RECORD_KEY,), reasons)
        column = Column(Texts.from_list([text.text for text in texts]), np.ones(len(texts), np.int64))
        return batch._replace(columns=[column], counted=[text.counted for text in texts])

    def _rendered(self, record: bytes) -> CountedText:
        conversation = records.parse(record)
        if self.rejects_special_tokens and (token := _spelled_out(conversation, self.special_tokens)):
            raise Unusable(f"special token {token} in a message")
        return turns.counted_text(conversation, self.template, self.train_on, self.special_tokens)


def _spelled_out(conversation: Conversation, special_tokens: Collection[str]) -> str | None:
    """The first special token that a message spells out."""
    waiting: list[object] = [value for message in conversation.messages for key, value in message.items() if key != "role"]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            token = next((token for token in special_tokens if token in value), None)
            if token is not None:
                return token
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return None
