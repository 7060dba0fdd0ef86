"""From the documents of a dataset back to the lines that they were made of, and from a text to its documents."""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lt_preprocess.datasets import decoding, source_datasets
from lt_preprocess.datasets.decoding import Text
from lt_shared.console import NoInput, Progress, UsageError
from lt_shared.data.document_origins import origins, source_lines
from lt_shared.data.document_origins.origins import Origins, Place
from lt_shared.data.document_origins.source_lines import SourceLine

DOCUMENTS_AT_ONCE = 4096
EXCERPT_CHARACTERS = 100


def records(source: str, documents: str | None) -> Iterator[dict[str, Any]]:
    """Yield the source of each document in a range, as records for JSON lines.

    Raises: NoInput for a dataset without recorded origins, and as `decoding.records`.
    """
    dataset, shape = source_datasets.single(source)
    first, last = decoding.parse_range(documents, shape.documents)
    of_dataset = _known_origins(dataset.prefix)
    for begin in range(first, last, DOCUMENTS_AT_ONCE):
        numbers = range(begin, min(begin + DOCUMENTS_AT_ONCE, last))
        places = of_dataset.locate(np.array(numbers))
        lines = source_lines.read(places)
        yield from map(_record, numbers, places, lines)


def _known_origins(prefix: str) -> Origins:
    document_origins = origins.of_dataset(prefix)
    if document_origins is None:
        raise NoInput(
            f"{prefix}: nothing says where its documents come from",
            "lt-preprocess keeps that in the sidecar of what it makes from files, merge, shuffle and split too: make it again",
        )
    return document_origins


def _record(number: int, place: Place | None, line: SourceLine) -> dict[str, Any]:
    """`line` and `offset` are null where they are not known, `problem` is there when the source could not be looked into."""
    path, unit = (place.path, "row" if place.kind == "row" else "line") if place else (None, "line")
    record = {"document": number, "path": path, unit: line.line, "offset": line.offset}
    return record | ({"problem": line.problem} if line.problem else {})


def compiled(pattern: str, is_fixed: bool, ignores_case: bool) -> re.Pattern[str]:
    """Compile the pattern. Raises UsageError if it is not a regular expression."""
    try:
        return re.compile(re.escape(pattern) if is_fixed else pattern, re.IGNORECASE if ignores_case else 0)
    except re.error as error:
        raise UsageError(f"{pattern!r}: not a regular expression: {error}", "-F takes it as text") from None


def matching(
    source: str, pattern: re.Pattern[str], tokenizer: Path | None, documents: str | None, most: int | None
) -> Iterator[dict[str, Any]]:
    """The documents whose text matches, with where they come from as far as that is known, and the text around the match."""
    dataset, shape = source_datasets.single(source)
    first, last = decoding.parse_range(documents, shape.documents)
    of_dataset = origins.of_dataset(dataset.prefix)
    with Progress("searching", last - first, "documents") as progress:
        matches = _matches(decoding.texts(dataset, tokenizer, first, last), pattern, first, progress)
        for number, excerpt in itertools.islice(matches, most):
            places: Sequence[Place | None] = of_dataset.locate(np.array([number])) if of_dataset else [None]
            [line] = source_lines.read(places)
            yield _record(number, places[0], line) | {"text": excerpt}


def _matches(texts: Iterator[Text], pattern: re.Pattern[str], first: int, progress: Progress) -> Iterator[tuple[int, str]]:
    for number, text in enumerate(texts, first):
        progress.advance(1)
        for part in [text] if isinstance(text, str) else text:
            if match := pattern.search(part):
                yield number, part[max(0, match.start() - EXCERPT_CHARACTERS) : match.end() + EXCERPT_CHARACTERS]
                break
