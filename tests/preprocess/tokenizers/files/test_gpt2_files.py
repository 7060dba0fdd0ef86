"""GPT-2's two files are read as they mean it, and refused when they are malformed or another model's."""

import json
import shutil
from pathlib import Path

import pytest
import tiktoken

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers.bpe.encoder import ByteLevelBpe
from lt_preprocess.tokenizers.files import gpt2_files
from lt_preprocess.tokenizers.vocabulary import Vocabulary
from lt_shared.console import BadData
from lt_shared.tokenizers import tokenizer_files


@pytest.fixture
def copy(tmp_path: Path, demo_tokenizer: Path) -> Path:
    return Path(shutil.copytree(demo_tokenizer, tmp_path / "tokenizer"))


def read(path: Path) -> Vocabulary:
    return gpt2_files.read(tokenizer_files.find(path))


def test_id_spaces(demo_tokenizer: Path, gpt2_vocabulary: Path) -> None:
    found = {path: (read(path).vocab_size, read(path).eod) for path in (demo_tokenizer, gpt2_vocabulary)}
    assert found == {demo_tokenizer: (2048, 2047), gpt2_vocabulary: (50257, 50256)}


def test_ids_need_not_follow_the_merges(copy: Path, demo_reference: tiktoken.Encoding, texts: list[str]) -> None:
    """The order of merges.txt decides what merges first, whatever the ids are."""
    ids = json.loads((copy / "vocab.json").read_text(encoding="utf-8"))
    renumbered = {token: 5 * (2047 - number) + 3 for token, number in ids.items()}
    (copy / "vocab.json").write_text(json.dumps(renumbered))
    changed = read(copy)
    assert (changed.vocab_size, changed.eod) == (5 * 2047 + 4, 3)
    encoder = ByteLevelBpe(changed).new_encoder()
    for text in texts[:200]:
        expected = [5 * (2047 - number) + 3 for number in demo_reference.encode_ordinary(text)]
        assert encoder.encode(Texts.from_list([text.encode()]))[0].tolist() == expected


def test_without_end_of_text(copy: Path) -> None:
    ids = json.loads((copy / "vocab.json").read_text(encoding="utf-8"))
    del ids["<|endoftext|>"]
    (copy / "vocab.json").write_text(json.dumps(ids))
    assert (read(copy).vocab_size, read(copy).eod) == (2047, None)


def test_merges_without_a_header(copy: Path) -> None:
    merges = (copy / "merges.txt").read_text(encoding="utf-8")
    (copy / "merges.txt").write_text(merges.split("\n", 1)[1].replace("\n", "\r\n"), encoding="utf-8", newline="")
    assert len(read(copy).merges) == 1791


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", "[1, 2]", "vocab.json"),
        ("vocab.json", '{"a": 1', "vocab.json: not JSON"),
        ("vocab.json", '{"a": "b"}', "'a' has id 'b'"),
        ("vocab.json", '{"a": 1, "b": 1}', "share an id"),
        ("vocab.json", '{"a": 1}', "not byte-level BPE"),
        ("merges.txt", "#version: 0.2\na b c\n", "merges.txt, line 2: 'a b c' is not a pair"),
        ("merges.txt", "#version: 0.2\n\u4e2d a\n", "merges.txt, line 2: '\u4e2d' is not in the vocabulary"),
        ("merges.txt", "q q\n", "merges.txt, line 1: 'qq' is not in the vocabulary"),
    ],
)
def test_malformed_gpt2_files(copy: Path, name: str, content: str, message: str) -> None:
    (copy / name).write_text(content, encoding="utf-8")
    with pytest.raises(BadData, match=message.replace(".", r"\.")):
        read(copy)


def test_merges_that_are_no_text(copy: Path) -> None:
    (copy / "merges.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadData, match=r"merges\.txt: not UTF-8"):
        read(copy)


def test_another_model_with_the_same_files_is_refused(copy: Path) -> None:
    (copy / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(BadData, match="Qwen2Tokenizer"):
        read(copy)
    (copy / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2TokenizerFast"}')
    assert read(copy).vocab_size == 2048
