"""Hints for a misspelt file and for integers in another notation."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.console import suggestions


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("corpsu.jsonl", "did you mean corpus.jsonl?"),
        ("./corpus.json", "did you mean ./corpus.jsonl?"),
        ("run1/train.lgo", "did you mean run1/train.log?"),
        ("runn1/train.log", "did you mean run1?"),
        ("run2/", "did you mean run1?"),
        ("weights.bin", None),
        ("crops.jsonl", None),
        ("nowhere/at/all", None),
        ("corpus.jsonl/x", None),
        ("zero\0byte", None),
        ("", None),
        ("/", None),
    ],
)
def test_the_nearest_file(path: str, hint: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").touch()
    (tmp_path / "run1").mkdir()
    (tmp_path / "run1" / "train.log").touch()
    assert suggestions.for_missing_file(path) == hint


@pytest.mark.parametrize(
    ("text", "integer"),
    [
        *(("1e3", "1000"), ("1E3", "1000"), ("2.5e9", "2500000000"), ("1,000", "1000"), ("1000.0", "1000"), ("4k", "4000")),
        *(("2.5B", "2500000000"), ("3M", "3000000"), ("1_0e1", "100"), ("7T", "7000000000000")),
        *(("1.5", None), ("1e-3", None), ("x", None), ("", None), ("1e999", None), ("-1e3", None), ("nan", None), ("0x10", None)),
    ],
)
def test_the_integer_that_is_meant(text: str, integer: str | None) -> None:
    assert suggestions.for_integer(text) == (integer and f"write {integer}")


@given(st.text())
def test_any_text_is_an_integer_or_none(text: str) -> None:
    hint = suggestions.for_integer(text)
    assert hint is None or int(hint.removeprefix("write ")) >= 0
