"""An encoder that disagrees with the library does not encode; one that agreed is not asked again until something changes."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers import self_check
from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_preprocess.tokenizers.self_check import Checked
from lt_shared.console import BadData
from lt_shared.tokenizers import tokenizer_files


class OneIdFor(Encoder, Tokenizer):
    """Encodes as `other` does, but every text with `marker` in it as one id."""

    vocab_size, eod = 2048, None

    def __init__(self, other: Tokenizer, marker: bytes):
        self._other = other
        self._marker = marker

    def new_encoder(self) -> "OneIdFor":
        return self

    def encode(self, texts: Texts) -> tuple[Ids, Lengths]:
        changed = [b"a" if self._marker in text else text for text in texts.to_list()]
        return self._other.new_encoder().encode(Texts.from_list(changed))

    def decode(self, ids: Sequence[int] | Ids) -> bytes:
        return b"decoded"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr("lt_preprocess.compiler.jit.cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def right(load_tokenizer: Callable[[Path], Tokenizer], demo_tokenizer: Path) -> Tokenizer:
    """The demo's tokenizer, which has agreed with its reference before the tests take the cache away: that takes a second."""
    tokenizer = load_tokenizer(demo_tokenizer)
    tokenizer.new_encoder()
    return tokenizer


def never() -> Tokenizer:
    raise AssertionError("the library was asked")


@pytest.mark.parametrize("marker", [b"\0", b"\xe0\xa4", b"\r\n", b"<|endoftext|>", "\U00011de0".encode()])
def test_an_encoder_that_disagrees_does_not_encode(
    cache: Path, right: Tokenizer, demo_tokenizer: Path, capsys: pytest.CaptureFixture[str], marker: bytes
) -> None:
    checked = Checked(OneIdFor(right, marker), lambda: right, tokenizer_files.find(demo_tokenizer), "other")
    text = Texts.from_list([b"one " + marker + b" two"])
    assert checked.new_encoder().encode(text)[0].tolist() == right.new_encoder().encode(text)[0].tolist()
    assert capsys.readouterr().err.count("give different ids for a sample") == 1
    checked.new_encoder()
    assert capsys.readouterr().err == ""
    assert checked.decode([1]) == b"decoded"
    Checked(OneIdFor(right, marker), lambda: right, tokenizer_files.find(demo_tokenizer), "other").new_encoder()
    assert "give different ids" in capsys.readouterr().err


def test_one_that_agrees_is_asked_once(
    cache: Path, right: Tokenizer, demo_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = shutil.copytree(demo_tokenizer, tmp_path / "tokenizer")
    Checked(right, lambda: right, tokenizer_files.find(directory)).new_encoder()
    Checked(right, never, tokenizer_files.find(directory)).new_encoder()
    with pytest.raises(AssertionError, match="was asked"):
        Checked(right, never, tokenizer_files.find(directory), "other options").new_encoder()
    with pytest.raises(AssertionError, match="was asked"), monkeypatch.context() as changed:
        changed.setattr(self_check, "_versions", lambda: "another version")
        Checked(right, never, tokenizer_files.find(directory)).new_encoder()
    (directory / "merges.txt").write_text((directory / "merges.txt").read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="was asked"):
        Checked(right, never, tokenizer_files.find(directory)).new_encoder()


def test_nowhere_to_remember(right: Tokenizer, demo_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lt_preprocess.compiler.jit.cache_directory", lambda: None)
    Checked(right, lambda: right, tokenizer_files.find(demo_tokenizer)).new_encoder()
    with pytest.raises(AssertionError, match="was asked"):
        Checked(right, never, tokenizer_files.find(demo_tokenizer)).new_encoder()


def test_a_few_texts_need_no_compiler(cache: Path, right: Tokenizer, demo_tokenizer: Path, tmp_path: Path) -> None:
    """The library encodes the texts of a few short runs; then, or for much text, the compiled encoder is checked and used."""
    directory = shutil.copytree(demo_tokenizer, tmp_path / "tokenizer")
    files = tokenizer_files.find(directory)
    for _ in range(3):
        encoder = Checked(OneIdFor(right, b"x"), lambda: right, files, "few").uncompiled_encoder()
        assert encoder is not None
        texts = Texts.from_list([b"x y"])
        assert encoder.encode(texts)[0].tolist() == right.new_encoder().encode(texts)[0].tolist()
    assert Checked(right, never, files, "few").uncompiled_encoder() is None
    checked = Checked(right, lambda: right, files, "other options")
    checked.new_encoder()
    assert checked.uncompiled_encoder() is None


def test_a_tokenizer_that_changes_before_it_is_checked(
    cache: Path, right: Tokenizer, demo_tokenizer: Path, tmp_path: Path
) -> None:
    directory = shutil.copytree(demo_tokenizer, tmp_path / "tokenizer")
    checked = Checked(right, lambda: right, tokenizer_files.find(directory))
    (directory / "merges.txt").write_text((directory / "merges.txt").read_text() + "\n")
    for call in (checked.uncompiled_encoder, checked.new_encoder):
        with pytest.raises(BadData, match="has changed since it was loaded"):
            call()
