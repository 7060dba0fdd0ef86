"""The corpus that benchmarks read."""

import gzip
import json
import random
from pathlib import Path

import corpus
import pytest
from corpus import Package

GUIDE = "How to begin.\n\n" + "A first paragraph of the guide, long enough to be told apart. " * 4
SHARED = "A paragraph that two of the files have, word for word, and that must appear once. " * 3
PAGE = f"<head><title>no</title></head><script>var no;</script><p>{GUIDE}</p><p>{SHARED}</p><p>5 &lt; 6</p>"
GERMAN = "Ein Absatz über Übungen, länger als zweihundert Zeichen. " * 6


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of two small packages that are unpacked already."""
    files = {
        "guide/usr/page.html": PAGE.encode(),
        "guide/usr/text.txt.gz": gzip.compress(f"{SHARED}\n\n{GUIDE} Another end.".encode()),
        "guide/usr/picture.png": b"\x89PNG",
        "hilfe/latin1.txt": GERMAN.encode("latin-1"),
        "hilfe/hilfe.txt": GERMAN.encode(),
    }
    for name, content in files.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.setattr(corpus, "ENGLISH_PACKAGES", (Package("guide", 1, ("*.html", "*.txt.gz")),))
    monkeypatch.setattr(corpus, "OTHER_PACKAGES", (Package("hilfe", 1, ("*.txt",)),))
    corpus.build(tmp_path / "corpus", tmp_path / "packages")
    return tmp_path / "corpus"


def texts(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_text_of_pages_and_compressed_files(built: Path) -> None:
    english = "\n".join(texts(built / corpus.ENGLISH))
    assert "How to begin." in english and "5 < 6" in english and "Another end." in english
    assert "var no" not in english and "<p>" not in english and "PNG" not in english


def test_paragraph_appears_once(built: Path) -> None:
    assert "\n".join(texts(built / corpus.MIXED)).count(SHARED.strip()) == 1


def test_mixed_is_english_and_more(built: Path) -> None:
    english, mixed = texts(built / corpus.ENGLISH), texts(built / corpus.MIXED)
    assert sorted(mixed) == sorted([*english, GERMAN.strip()])


def test_same_packages_give_same_bytes(built: Path, tmp_path: Path) -> None:
    corpus.build(tmp_path / "again", tmp_path / "packages")
    for name in (corpus.ENGLISH, corpus.MIXED):
        assert (tmp_path / "again" / name).read_bytes() == (built / name).read_bytes()


def test_lines_have_several_shapes() -> None:
    chance = random.Random(1)
    lines = [corpus._line(number, "Übung", chance) for number in range(30)]
    assert {json.loads(line)["text"] for line in lines} == {"Übung"}
    assert len({tuple(json.loads(line)) for line in lines}) == 3
    assert 0 < sum("\\u00dc" in line for line in lines) < 30


def test_documents_load_as_they_were(built: Path, tmp_path: Path) -> None:
    corpus.write_texts(built / corpus.MIXED, tmp_path / "texts")
    loaded = [text.decode() for text in corpus.load_texts(tmp_path / "texts")]
    assert loaded == texts(built / corpus.MIXED)
    assert list(corpus.load_texts(tmp_path / "texts", 1e-6)) == [loaded[0].encode()]
