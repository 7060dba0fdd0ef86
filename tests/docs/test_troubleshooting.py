"""docs/troubleshooting.md quotes errors that the tools have."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
QUOTED = re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE)
SOURCES = "\n".join(path.read_text() for path in [*ROOT.glob("tools/*/src/**/*.py"), *ROOT.glob("shared/src/**/*.py")])


@pytest.mark.parametrize("words", QUOTED)
def test_the_quoted_words_are_in_the_sources(words: str) -> None:
    assert words in SOURCES


def test_each_error_is_explained_once() -> None:
    assert len(QUOTED) == len(set(QUOTED)) >= 20
    for entry in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        explanation = entry.partition("\n")[2].partition("\n## ")[0]
        assert len(explanation.split()) >= 12, entry
