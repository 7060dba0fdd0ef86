"""Apply the rules of a run to batches of documents."""

import numpy as np

from lt_preprocess.curation import lengths, words
from lt_preprocess.curation.contamination import EvaluationTexts
from lt_preprocess.curation.documents import LineStarts, document_texts
from lt_preprocess.curation.duplicates import DuplicateList
from lt_preprocess.curation.languages import Classifier
from lt_preprocess.curation.rules import Removals, Rules
from lt_preprocess.readers.batch import Batch
from lt_preprocess.readers.chunks import Chunk
from lt_preprocess.texts import Lengths, Texts


class Curator:
    """Applies rules to batches; threads share it. `duplicates` is the list that the rules name."""

    def __init__(self, rules: Rules, duplicates: DuplicateList | None = None):
        self._rules = rules
        self._duplicates = duplicates
        self._classifier = None if rules.language is None else Classifier(rules.language)
        self._evaluation_texts = EvaluationTexts(rules.evaluation_texts) if rules.evaluation_texts else None
        self._units = {rule.unit for rule in rules.lengths}
        self._needs_words = "words" in self._units or self._evaluation_texts is not None

    def prepare(self) -> None:
        """Compile the rules' kernels before threads start."""
        self._text_removals(Texts.from_list([b"a text"]), {})

    def removals(self, chunk: Chunk, batch: Batch, line_starts: LineStarts) -> Removals:
        """Return the documents of a chunk that a rule removes before encoding."""
        removals: Removals = {}
        if self._duplicates is not None:
            removals = self._duplicates.removals(chunk.end.input, line_starts.of_documents(batch.lines))
        return self._text_removals(document_texts(batch), removals) if self._has_text_rules else removals

    def _text_removals(self, texts: Texts, removals: Removals) -> Removals:
        text_words = words.words(texts) if self._needs_words else None
        for rule in self._rules.lengths:
            if rule.unit == "bytes":
                removals = rule.removals(np.diff(texts.offsets)) | removals
            elif rule.unit == "characters":
                removals = rule.removals(lengths.characters(texts)) | removals
            elif text_words is not None and rule.unit == "words":
                removals = rule.removals(text_words.counts) | removals
        if self._classifier is not None:
            for document, text in enumerate(texts.to_list()):
                if document not in removals and (removal := self._classifier.removal(text.decode())):
                    removals[document] = removal
        if self._evaluation_texts is not None and text_words is not None:
            removals = self._evaluation_texts.removals(text_words) | removals
        return removals

    def token_removals(self, tokens: Lengths) -> Removals:
        """Return the documents that have too few or too many tokens; `tokens` int64 [documents]."""
        removals: Removals = {}
        for rule in self._rules.lengths:
            if rule.unit == "tokens":
                removals = rule.removals(tokens) | removals
        return removals

    @property
    def has_token_limits(self) -> bool:
        return "tokens" in self._units

    @property
    def needs_positions(self) -> bool:
        return self._duplicates is not None

    @property
    def _has_text_rules(self) -> bool:
        return bool(self._units - {"tokens"}) or self._classifier is not None or self._evaluation_texts is not None
