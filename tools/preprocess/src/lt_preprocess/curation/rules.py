"""Which rules a run applies to its documents.

A document's text is all of its texts, of every key, joined by line breaks. The first rule that removes a document gives the
reason: duplicates, length, language, evaluation texts. Limits in tokens are applied after encoding.
"""

import hashlib
from typing import Any, NamedTuple

from lt_preprocess.curation.languages import LanguageRule
from lt_preprocess.curation.lengths import LengthRule
from lt_preprocess.readers.paths import STDIN
from lt_shared.console import UsageError
from lt_shared.files import storage

Removals = dict[int, tuple[str, str]]
"""The kind and the reason for each removed document, by its number in the batch."""


class Rules(NamedTuple):
    """The rules on the command line; none by default."""

    lengths: tuple[LengthRule, ...] = ()
    language: LanguageRule | None = None
    evaluation_texts: tuple[str, ...] = ()
    duplicates: str | None = None

    def to_record(self) -> dict[str, Any]:
        """Return the rules as text, without those that are off."""
        record = {
            "keep_length": [str(rule) for rule in self.lengths],
            "keep_language": None if self.language is None else str(self.language),
            "decontaminate": list(self.evaluation_texts),
            "duplicates": self.duplicates,
        }
        return {name: value for name, value in record.items() if value}

    def fingerprint(self) -> dict[str, Any]:
        """Return all that decides which documents are removed: paths are replaced by the content of their files.

        Raises: NoInput for a missing file, UsageError for standard input.
        """
        if STDIN in self.evaluation_texts:
            raise UsageError("--decontaminate -: evaluation texts cannot come from standard input", "write them to a file")
        record = self.to_record()
        if self.evaluation_texts:
            record["decontaminate"] = [hashlib.sha256(storage.read_bytes(path)).hexdigest() for path in self.evaluation_texts]
        if self.duplicates is not None:
            from lt_preprocess.curation.duplicates import read_record

            listed = read_record(self.duplicates)[0]
            record["duplicates"] = [listed["plan"], listed["crc32"]]
        return record


NO_RULES = Rules()
