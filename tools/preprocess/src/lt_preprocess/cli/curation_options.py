"""Options that leave documents out: their length, language, and n-grams of evaluation texts."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from lt_preprocess.curation.rules import Rules

_OPTIONS = (
    click.option(
        "--keep-length",
        multiple=True,
        metavar="UNIT:MIN:MAX",
        help="Keep documents of MIN to MAX bytes, characters, words or tokens; either limit may be empty (words:50:).",
    ),
    click.option(
        "--keep-language",
        metavar="CODES[:SCORE]",
        help="Keep documents in these languages (en,de): fastText's score is above SCORE, 0.65 by default.",
    ),
    click.option(
        "--decontaminate",
        multiple=True,
        metavar="FILE",
        help="Remove documents that share 12 words in a row with an evaluation text, the text of a line of FILE.",
    ),
    click.option("--duplicates", metavar="FILE", help="Remove the duplicates that lt-preprocess dedup has listed in FILE."),
)


def curation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def rules(keep_length: Sequence[str], keep_language: str | None, decontaminate: Sequence[str], duplicates: str | None) -> "Rules":
    """Parse the options' values. Raises UsageError for a malformed rule."""
    from lt_preprocess.curation.languages import LanguageRule
    from lt_preprocess.curation.lengths import LengthRule
    from lt_preprocess.curation.rules import Rules

    language = None if keep_language is None else LanguageRule.parse(keep_language)
    return Rules(tuple(map(LengthRule.parse, keep_length)), language, tuple(decontaminate), duplicates)
