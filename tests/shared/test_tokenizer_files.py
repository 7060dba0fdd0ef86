"""A tokenizer is recognised by its content, and its hash is the same wherever its files lie."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from lt_shared import tokenizer_files
from lt_shared.console import BadData, NoInput

DEMO = Path(__file__).parents[1] / "demo/tokenizer"
TIKTOKEN = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
# A SentencePiece model is a protobuf message whose first field is the first piece.
SENTENCEPIECE = b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02"
TOKENIZER_JSON = json.dumps({"version": "1.0", "model": {"type": "BPE"}}).encode()


def make(directory: Path, **files: bytes) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (directory / name.replace("__", ".")).write_bytes(content)
    return directory


@pytest.mark.parametrize(
    ("files", "kind", "names"),
    [
        ({"vocab__json": b"{}", "merges__txt": b""}, "gpt2", ["vocab.json", "merges.txt"]),
        ({"tokenizer__model": TIKTOKEN}, "tiktoken", ["tokenizer.model"]),
        ({"tokenizer__model": SENTENCEPIECE}, "sentencepiece", ["tokenizer.model"]),
        ({"tokenizer__json": TOKENIZER_JSON}, "tokenizer.json", ["tokenizer.json"]),
        ({"tokenizer__json": TOKENIZER_JSON, "vocab__json": b"{}", "merges__txt": b""}, "tokenizer.json", ["tokenizer.json"]),
        ({"tokenizer__json": TOKENIZER_JSON, "tokenizer__model": TIKTOKEN}, "tiktoken", ["tokenizer.model"]),
    ],
)
def test_directories(tmp_path: Path, files: dict[str, bytes], kind: str, names: list[str]) -> None:
    found = tokenizer_files.find(make(tmp_path / "tok", **files))
    assert (found.kind, [path.name for path in found.files], found.name) == (kind, names, "tok")
    assert found.directory == tmp_path / "tok"


@pytest.mark.parametrize(
    "pair", [("vocab.json", "merges.txt"), ("gpt2-vocab.json", "gpt2-merges.txt"), ("encoder.json", "vocab.bpe")]
)
def test_either_file_of_a_gpt2_pair(tmp_path: Path, pair: tuple[str, str]) -> None:
    for name in pair:
        (tmp_path / name).write_bytes(b"{}")
    for name in pair:
        found = tokenizer_files.find(tmp_path / name)
        assert found.kind == "gpt2"
        assert [path.name for path in found.files] == list(pair)
    (tmp_path / pair[1]).unlink()
    with pytest.raises(NoInput, match=f"{pair[1]}: missing, needed beside {pair[0]}"):
        tokenizer_files.find(tmp_path / pair[0])


def test_a_tokenizer_json_under_another_name(tmp_path: Path) -> None:
    make(tmp_path, my__json=TOKENIZER_JSON)
    assert tokenizer_files.find(tmp_path / "my.json").kind == "tokenizer.json"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.model", b""),
        ("tokenizer.model", b"not a tokenizer\n"),
        ("tokenizer.model", b"a b\n"),
        ("tokenizer.model", b"YQ== 0"),
        ("other.json", b"{}"),
        ("other.json", b"{"),
        ("other.json", b"\xff"),
        ("other.txt", b""),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=name):
        tokenizer_files.find(tmp_path / name)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="no tokenizer in this directory"):
        tokenizer_files.find(tmp_path)
    with pytest.raises(NoInput, match="no such tokenizer"):
        tokenizer_files.find(tmp_path / "none")


def test_the_hash_depends_on_content_and_kind_alone(tmp_path: Path) -> None:
    demo = tokenizer_files.find(DEMO)
    shutil.copytree(DEMO, tmp_path / "copy")
    (tmp_path / "copy/tokenizer_config.json").write_text("{}")
    copy = tokenizer_files.find(tmp_path / "copy")
    assert copy.sha256() == demo.sha256()
    shutil.move(tmp_path / "copy/vocab.json", tmp_path / "copy/encoder.json")
    shutil.move(tmp_path / "copy/merges.txt", tmp_path / "copy/vocab.bpe")
    assert tokenizer_files.find(tmp_path / "copy/vocab.bpe").sha256() == demo.sha256()
    merges = tmp_path / "copy/vocab.bpe"
    merges.write_bytes(merges.read_bytes()[:-2])
    assert tokenizer_files.find(tmp_path / "copy/vocab.bpe").sha256() != demo.sha256()


def test_a_byte_moved_between_the_files_changes_the_hash(tmp_path: Path) -> None:
    first = tokenizer_files.find(make(tmp_path / "a", vocab__json=b"{}\n", merges__txt=b"#"))
    second = tokenizer_files.find(make(tmp_path / "b", vocab__json=b"{}", merges__txt=b"\n#"))
    assert first.sha256() != second.sha256()


def test_copies_take_the_companions_along(tmp_path: Path) -> None:
    source = make(tmp_path / "tok", tokenizer__model=TIKTOKEN, tokenizer_config__json=b"{}", unrelated__bin=b"x")
    found = tokenizer_files.find(source)
    found.copy_to(tmp_path / "new/tokenizer")
    assert sorted(path.name for path in (tmp_path / "new/tokenizer").iterdir()) == ["tokenizer.model", "tokenizer_config.json"]
    assert tokenizer_files.find(tmp_path / "new/tokenizer").sha256() == found.sha256()
    found.copy_to(source)
    assert tokenizer_files.find(source).sha256() == found.sha256()
