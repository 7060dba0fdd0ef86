"""The part of a plan that reads chat files: its options, checked, and how conversations become texts."""

import dataclasses
import hashlib
from typing import Self

from lt_preprocess.conversations import chat_template
from lt_preprocess.conversations.chat_template import ChatTemplate
from lt_preprocess.conversations.turns import TrainOn
from lt_preprocess.curation.rules import Rules
from lt_preprocess.documents.conversation_filter import Conversations
from lt_preprocess.documents.fill_in_the_middle import FillInTheMiddle
from lt_preprocess.readers.inputs import SampleBy
from lt_preprocess.tokenizers.base import Tokenizer
from lt_shared.console import UsageError, note
from lt_shared.tokenizers.tokenizer_files import TokenizerFiles

JSON_KEY = "chat"
"""What the datasets are called: PREFIX_chat_document."""


@dataclasses.dataclass(frozen=True)
class Chat:
    """`template` is a chat template or the path of a file with one, None for the tokenizer's.

    A plan adds `template_sha256` and, if the template writes it, the `date`, because both decide the result.
    """

    train_on: TrainOn = "assistant"
    template: str | None = None
    template_sha256: str | None = None
    date: str | None = None

    def resolved(self, template: ChatTemplate) -> Self:
        """Return the options that are recorded: the template by its content, not by its path."""
        content = "\0".join(f"{name}\0{text}" for name, text in sorted(template.texts.items()))
        sha256 = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
        return dataclasses.replace(self, template=None, template_sha256=sha256, date=template.date)


def check(chat: Chat, template: str | None, sample_by: SampleBy, fim: FillInTheMiddle | None, rules: Rules) -> None:
    """Raise UsageError for options that are about texts only."""
    about_texts = {
        "--template": template is not None,
        "--sample-by line": sample_by == "line",
        "--fim-rate": fim is not None,
        "--duplicates": rules.duplicates is not None,
    }
    if name := next((name for name, is_set in about_texts.items() if is_set), None):
        raise UsageError(f"--chat and {name}: a conversation is no plain text", f"leave {name} out")


def conversations(chat: Chat, files: TokenizerFiles, tokenizer: Tokenizer, rejects_special_tokens: bool) -> Conversations:
    """Load the chat template. Raises as `chat_template.load`."""
    template = chat_template.load(files, chat.template)
    if template.date is not None:
        note(
            f"the chat template writes the date of today, {template.date}: another day gives another result;"
            f" {chat_template.DATE_VARIABLE} sets the date"
        )
    # The longest first: one special token can be the beginning of another.
    special_tokens = sorted(tokenizer.special_tokens, key=len, reverse=True)
    return Conversations(template, chat.train_on, special_tokens, rejects_special_tokens)
