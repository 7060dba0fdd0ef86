"""A tokenizer is recognised by its content, and its hash is the same wherever its files lie."""

import base64
import json
import shutil
from pathlib import Path

import pytest

from lt_shared.console import BadData, NoInput
from lt_shared.tokenizers import tokenizer_files

DEMO = Path(__file__).parents[2] / "demo/tokenizer"
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
        ({"encoder__json": b"{}", "vocab__bpe": b""}, "gpt2", ["encoder.json", "vocab.bpe"]),
        ({"qwen__tiktoken": TIKTOKEN}, "tiktoken", ["qwen.tiktoken"]),
        ({"tokenizer__model": TIKTOKEN}, "tiktoken", ["tokenizer.model"]),
        ({"tokenizer__model": SENTENCEPIECE}, "sentencepiece", ["tokenizer.model"]),
        ({"tokenizer__json": TOKENIZER_JSON}, "tokenizer.json", ["tokenizer.json"]),
        ({"tokenizer__json": TOKENIZER_JSON, "vocab__json": b"{}", "merges__txt": b""}, "tokenizer.json", ["tokenizer.json"]),
        ({"tokenizer__json": TOKENIZER_JSON, "tokenizer__model": TIKTOKEN}, "tiktoken", ["tokenizer.model"]),
        ({"tokenizer__json": TOKENIZER_JSON, "tokenizer__model": SENTENCEPIECE}, "tokenizer.json", ["tokenizer.json"]),
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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory without tokenizers, in which names are looked up."""
    for variable in ("LT_TOKENIZERS", "XDG_DATA_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_names_are_looked_up_in_order(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [
        make(home / ".cache/huggingface/hub/models--openai-community--gpt2/snapshots/0a", vocab__json=b"{}", merges__txt=b"hub"),
        make(home / ".local/share/lt/tokenizers/gpt2", vocab__json=b"{}", merges__txt=b"home"),
        make(tmp_path / "second/gpt2", vocab__json=b"{}", merges__txt=b"second"),
        make(tmp_path / "first/gpt2", vocab__json=b"{}", merges__txt=b"first"),
    ]
    monkeypatch.setenv("LT_TOKENIZERS", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    for place in reversed(places):
        assert tokenizer_files.find("gpt2").directory == place
        shutil.rmtree(place)
    make(tmp_path / "gpt2", vocab__json=b"{}", merges__txt=b"here")
    assert tokenizer_files.find("gpt2").directory == Path("gpt2")


@pytest.mark.parametrize(
    ("file", "content"), [("mine.model", TIKTOKEN), ("mine.tiktoken", TIKTOKEN), ("mine.json", TOKENIZER_JSON)]
)
def test_a_name_may_be_a_file(home: Path, file: str, content: bytes) -> None:
    make(home / ".local/share/lt/tokenizers")
    (home / ".local/share/lt/tokenizers" / file).write_bytes(content)
    assert tokenizer_files.find("mine").files[0].name == file


def test_the_main_version_of_a_repository(home: Path) -> None:
    repository = home / ".cache/huggingface/hub/models--Qwen--Qwen2.5-7B"
    for version in ("old", "new"):
        make(repository / "snapshots" / version, tokenizer__json=TOKENIZER_JSON)
    make(repository / "snapshots/weights_only")
    make(repository / "refs", main=b"old\n")
    for name in ("Qwen/Qwen2.5-7B", "qwen2"):
        found = tokenizer_files.find(name)
        assert (found.directory.name, found.name) == ("old", "Qwen/Qwen2.5-7B")
    (repository / "refs/main").write_text("weights_only")
    assert tokenizer_files.find("qwen2").directory.name in ("old", "new")


def test_a_name_that_is_nowhere(home: Path) -> None:
    with pytest.raises(NoInput, match=r"llama3: no such file.*looked for the name in .*lt/tokenizers.*huggingface") as error:
        tokenizer_files.find("llama3")
    assert error.value.hint is not None
    assert "hf download meta-llama/Meta-Llama-3-8B" in error.value.hint


@pytest.mark.parametrize("name", ["../gpt2", "a/b/c", "..", "a b", "/gpt2"])
def test_what_is_no_name_is_not_looked_up(home: Path, name: str) -> None:
    make(home / ".local/share/lt/gpt2", vocab__json=b"{}", merges__txt=b"")
    if name != "..":
        with pytest.raises(NoInput, match="no such tokenizer file or directory"):
            tokenizer_files.find(name)


TEKKEN = json.dumps({"config": {}, "vocab": []}).encode()


def test_tekken_comes_before_what_was_made_from_it(tmp_path: Path) -> None:
    directory = make(tmp_path / "nemo", tekken__json=TEKKEN, tokenizer__json=TOKENIZER_JSON)
    assert tokenizer_files.find(directory).kind == "tekken"
    (directory / "tekken.json").rename(directory / "other.json")
    assert tokenizer_files.find(directory / "other.json").kind == "tekken"
    assert tokenizer_files.find(directory).kind == "tokenizer.json"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ('{"config":{"pattern":"]}\\"","n":{}},"vocab":[{"rank"', "tekken"),
        (' {\n "config" : {} ,\n\t"vocab" : [ ]\n}', "tekken"),
        ('{"vocab": [], "config": {}}', "tekken"),
        ('{"config": {}, "vocab": {}, "model": {}}', "tokenizer.json"),
        ('{"config": {}, "model": {}, "vocab": []}', "tokenizer.json"),
    ],
)
def test_a_tekken_file_is_known_by_how_it_begins(tmp_path: Path, content: str, kind: str) -> None:
    (tmp_path / "any.json").write_text(content)
    assert tokenizer_files.find(tmp_path / "any.json").kind == kind


@pytest.mark.parametrize(
    "content", ['{"config": {}, "vocab": {}}', '{"config": [], "vocab": []}', '{"config": {"vocab": []}}', "[]"]
)
def test_what_is_no_tekken_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "any.json").write_text(content)
    with pytest.raises(BadData, match="not a tokenizer that is known"):
        tokenizer_files.find(tmp_path / "any.json")


def test_the_code_beside_a_tiktoken_file_belongs_to_it(tmp_path: Path) -> None:
    directory = make(tmp_path / "tok", tiktoken__model=TIKTOKEN, tokenization_x__py=b"PATTERN = 1", modeling__py=b"")
    found = tokenizer_files.find(directory)
    assert [path.name for path in found.files] == ["tiktoken.model", "tokenization_x.py"]
    before = found.sha256()
    (directory / "tokenization_x.py").write_bytes(b"PATTERN = 2")
    assert tokenizer_files.find(directory).sha256() != before


def test_a_dataset_made_with_the_model_beside_a_tokenizer_json(tmp_path: Path) -> None:
    place = make(tmp_path / "tok", tokenizer__json=TOKENIZER_JSON, tokenizer__model=SENTENCEPIECE)
    model, converted = tokenizer_files.find(place / "tokenizer.model"), tokenizer_files.find(place / "tokenizer.json")
    assert tokenizer_files.find_made_with(place, model.sha256()).files == model.files
    assert tokenizer_files.find_made_with(place, converted.sha256()).files == converted.files
    assert tokenizer_files.find_made_with(place, "0" * 64).files == converted.files


ADDED = {"content": "<tool>", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": False}


@pytest.mark.parametrize(
    ("config", "is_another"),
    [
        ({"chat_template": "x", "eos_token": "a"}, False),
        ({"added_tokens_decoder": {"0": ADDED | {"content": "a", "special": True}}}, False),
        ({"added_tokens_decoder": {"1": ADDED}}, True),
        ({"pad_token": "[PAD]"}, True),
        ({"add_prefix_space": True}, True),
        ({"add_prefix_space": False}, False),
    ],
)
def test_what_companions_add_is_part_of_the_hash(tmp_path: Path, config: dict[str, object], is_another: bool) -> None:
    place = make(tmp_path / "tok", vocab__json=b'{"a": 0}', merges__txt=b"")
    before = tokenizer_files.find(place).sha256()
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    assert (tokenizer_files.find(place).sha256() != before) is is_another


def test_a_tokenizer_json_that_has_the_added_tokens_keeps_its_hash(tmp_path: Path) -> None:
    content = json.dumps({"model": {"type": "BPE", "vocab": {"caf\u00e9": 0}}, "added_tokens": [ADDED | {"id": 1}]})
    place = make(tmp_path / "tok", tokenizer__json=content.encode())
    before = tokenizer_files.find(place).sha256()
    config = {"added_tokens_decoder": {"1": ADDED}}
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    assert tokenizer_files.find(place).sha256() == before
    (place / "added_tokens.json").write_text('{"<new>": 2}')
    assert tokenizer_files.find(place).sha256() == before, "the decoder of tokenizer_config.json comes first"
    # The name makes an added token of a word of the vocabulary.
    (place / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": "caf\u00e9"}))
    assert tokenizer_files.find(place).sha256() != before
    (place / "tokenizer_config.json").unlink()
    assert tokenizer_files.find(place).sha256() != before
