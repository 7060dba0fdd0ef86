"""Several validation sets by name in --valid-data-path."""

from pathlib import Path

import pytest
import synthetic

from lt_shared.console import UsageError
from lt_train.config.settings import validation_sets


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lang=en").mkdir()
    for name in ("train", "web", "code", "lang=en/part", "en=web"):
        synthetic.write(Path(name), [9] * 20)
    return tmp_path


def sets(*words: str) -> dict[str, list[tuple[str, float]]]:
    data = synthetic.plan("--seq-length", "16", "--train-data-path", "train", "--valid-data-path", *words).data
    return {name: [(each.prefix, each.weight) for each in datasets] for name, datasets in data.validation_sets.items()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["web"], {"": [("web", 1.0)]}),
        (["2", "web", "1", "code"], {"": [("web", 2.0), ("code", 1.0)]}),
        (["w=web", "c=code"], {"w": [("web", 1.0)], "c": [("code", 1.0)]}),
        (["w=web", "both=", "2", "web", "code"], {"w": [("web", 1.0)], "both": [("web", 2.0), ("code", 1.0)]}),
        (["both=2", "web", "0.5", "code"], {"both": [("web", 2.0), ("code", 0.5)]}),
        (["lang=en/part", "en=web"], {"": [("lang=en/part", 1.0), ("en=web", 1.0)]}),
        (["e=lang=en/part"], {"e": [("lang=en/part", 1.0)]}),
    ],
)
def test_which_data_a_set_has(folder: Path, words: list[str], expected: dict[str, list[tuple[str, float]]]) -> None:
    assert sets(*words) == expected


def test_the_words_that_are_data(folder: Path) -> None:
    """For job files, which look whether containers see them."""
    words = ["w=web", "both=", "2", "code", "lang=en/part"]
    assert validation_sets.without_names(words) == ["web", "2", "code", "lang=en/part"]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["web", "c=code"], "before the first NAME="),
        (["a=web", "a=code"], "two sets are called a"),
        (["a=", "b=code"], "nothing follows a="),
        (["a=web", "b="], "nothing follows b="),
    ],
)
def test_what_is_no_set(folder: Path, words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        sets(*words)
