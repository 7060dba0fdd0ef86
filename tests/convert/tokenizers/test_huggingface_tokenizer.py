"""The tokenizer of a converted checkpoint encodes as the original, and comes back as the same files."""

import base64
import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.tokenizers import huggingface_tokenizer
from lt_shared.console import BadData
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture
from lt_shared.tokenizers import llama3, tokenizer_files
from lt_shared.tokenizers.byte_symbols import BYTE_OF_SYMBOL

GPT2 = Path(__file__).parents[2] / "demo" / "tokenizer"
# Larger than that of any tokenizer here.
VOCABULARY = 200_000
TEXTS = ["The Unix system", "  two  spaces\n\tand tabs ", "naïve café 日本語 🙂", "it's 12345 o'clock", "", "a\r\nb"]
# Ids of added tokens follow those of the vocabulary.
BESIDE: dict[str, dict[str, Any]] = {
    "added-tokens": {"added_tokens.json": {"<|im_start|>": 0, "<tool>": 1}},
    "added-and-special": {
        "added_tokens.json": {"<|im_start|>": 0, "<tool>": 1},
        "special_tokens_map.json": {"additional_special_tokens": ["<|im_start|>"], "pad_token": "<|pad|>"},
    },
    "decoder": {
        "tokenizer_config.json": {
            "added_tokens_decoder": {
                0: {
                    "content": "<think>",
                    "lstrip": True,
                    "rstrip": False,
                    "single_word": False,
                    "normalized": False,
                    "special": True,
                },
                1: {
                    "content": "Word",
                    "lstrip": False,
                    "rstrip": True,
                    "single_word": True,
                    "normalized": True,
                    "special": False,
                },
            },
        }
    },
    "prefix-space": {"tokenizer_config.json": {"add_prefix_space": True}},
    "pad-alone": {"tokenizer_config.json": {"pad_token": "<|pad|>"}},
}
TEXTS_WITH_ADDED_TOKENS = [
    "hello <|im_start|>user <tool>x",
    "a <think> b",
    "Words Word wording",
    "<|pad|><|endoftext|>",
    "  two  spaces",
]


@pytest.fixture
def run(architectures: dict[str, Architecture], tmp_path: Path) -> Path:
    """A Megatron run whose tokenizer is the demo's GPT-2 vocabulary."""
    architecture = dataclasses.replace(architectures["grouped"], vocab_size=2048)
    LlamaForCausalLM(LlamaConfig(**huggingface.to_config(architecture, "float32"))).save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "generation_config.json").unlink()
    tokenizer_files.find(GPT2).copy_to(tmp_path / "source")
    conversion.convert(Request(str(tmp_path / "source"), "megatron-dist", str(tmp_path / "run")))
    # The source's configuration has the ids of a Llama, not of this vocabulary.
    shutil.rmtree(tmp_path / "run/huggingface")
    return tmp_path / "run"


def test_gpt2_vocabulary_loads_in_transformers(run: Path, tmp_path: Path) -> None:
    from transformers import GPT2Tokenizer

    conversion.convert(Request(str(run), "hf", str(tmp_path / "hf")))
    found = AutoTokenizer.from_pretrained(tmp_path / "hf")
    stock = GPT2Tokenizer.from_pretrained(GPT2)
    for text in TEXTS:
        assert found(text).input_ids == stock(text).input_ids
        assert found.decode(found(text).input_ids) == text
    assert found.eos_token_id == 2047
    assert found("a<|endoftext|>").input_ids[-1] == 2047
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_text())["eos_token_id"] == 2047
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["eos_token_id"] == 2047


def test_tokenizer_keeps_its_hash_on_the_way_back(run: Path, tmp_path: Path) -> None:
    original = RunRecord.read(run / "release").tokenizer
    assert original and original.sha256 == tokenizer_files.find(GPT2).sha256()
    conversion.convert(Request(str(run), "hf", str(tmp_path / "hf")))
    conversion.convert(Request(str(tmp_path / "hf"), "megatron-dist", str(tmp_path / "back")))
    again = RunRecord.read(tmp_path / "back" / "release").tokenizer
    assert again and again.sha256 == original.sha256
    assert sorted(path.name for path in (tmp_path / "back" / "tokenizer").iterdir() if "config" not in path.name) == [
        "merges.txt",
        "tokenizer.json",
        "vocab.json",
    ]


def test_another_tokenizer_in_its_place_is_refused(run: Path, tmp_path: Path) -> None:
    place = checkpoint_layout.tokenizer_directory(run)
    vocabulary = json.loads((place / "vocab.json").read_text())
    (place / "vocab.json").write_text(json.dumps(vocabulary | {"extra": 2048}))
    with pytest.raises(BadData, match=r"vocab\.json: 33210 bytes, 33196 were recorded"):
        conversion.convert(Request(str(run), "hf", str(tmp_path / "hf")))
    with pytest.raises(BadData, match="not the tokenizer"):
        conversion.convert(Request(str(run), "hf", str(tmp_path / "hf"), verify=False))


def test_tokenizer_json_is_kept_as_it_is(tmp_path: Path) -> None:
    made = tmp_path / "made"
    huggingface_tokenizer.write(tokenizer_files.find(GPT2), made, 512, VOCABULARY)
    (made / "vocab.json").unlink()
    configuration = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": {"content": "!"}, "chat_template": "x"}
    (made / "tokenizer_config.json").write_text(json.dumps(configuration))
    ids = huggingface_tokenizer.write(tokenizer_files.find(made), tmp_path / "out", 512, VOCABULARY)
    assert ids == {"bos_token_id": 2047, "eos_token_id": 0}
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (made / name).read_bytes()


def test_llama3_file_encodes_as_tiktoken_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt2 = json.loads((GPT2 / "vocab.json").read_text())
    ranks = {
        bytes(BYTE_OF_SYMBOL[character] for character in token): rank for token, rank in gpt2.items() if token != "<|endoftext|>"
    }
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in sorted(ranks.items(), key=lambda item: item[1])]
    (tmp_path / "tokenizer.model").write_text("".join(lines))
    monkeypatch.setattr(huggingface_tokenizer, "LLAMA3_RANKS", len(ranks))
    names = llama3.special_tokens()
    special = {name: len(ranks) + index for index, name in enumerate(names)}
    stock = tiktoken.Encoding(
        "llama3", pat_str=huggingface_tokenizer.LLAMA3_PATTERN, mergeable_ranks=ranks, special_tokens=special
    )
    ids = huggingface_tokenizer.write(tokenizer_files.find(tmp_path), tmp_path / "out", 512, VOCABULARY)
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS:
        assert found(text).input_ids == [special["<|begin_of_text|>"], *stock.encode_ordinary(text)]
    assert found("<|eot_id|>").input_ids[1:] == [len(ranks) + 9]
    assert ids == {"bos_token_id": len(ranks), "eos_token_id": len(ranks) + 1}
    assert tokenizer_files.find(tmp_path / "out").sha256() == tokenizer_files.find(tmp_path).sha256()


def test_tekken_encodes_as_tiktoken_does(tmp_path: Path) -> None:
    pattern = r"\s?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"
    tokens = [*(bytes([byte]) for byte in range(256)), b"th", b"he", b"the", b" the", b"in", b"aa", b"aaa"]
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for rank, token in enumerate(tokens)]
    config = {"pattern": pattern, "default_vocab_size": 20 + len(tokens), "default_num_special_tokens": 20}
    (tmp_path / "tekken.json").write_text(json.dumps({"config": config, "vocab": vocab}))
    ranks = {token: rank for rank, token in enumerate(tokens)}
    stock = tiktoken.Encoding("tekken", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    ids = huggingface_tokenizer.write(tokenizer_files.find(tmp_path), tmp_path / "out", 512, VOCABULARY)
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in [*TEXTS, "the aaa bathe"]:
        assert found(text).input_ids == [1, *(20 + number for number in stock.encode_ordinary(text))]
    assert found("[INST]</s>").input_ids == [1, 3, 2]
    assert ids == {"bos_token_id": 1, "eos_token_id": 2}
    assert tokenizer_files.find(tmp_path / "out").sha256() == tokenizer_files.find(tmp_path).sha256()


def test_special_tokens_of_llama3_have_their_published_ids() -> None:
    names = llama3.special_tokens()
    assert len(set(names)) == 256
    published = {0: "begin_of_text", 1: "end_of_text", 2: "reserved_special_token_0", 6: "start_header_id", 9: "eot_id"}
    assert all(names[index] == f"<|{name}|>" for index, name in published.items())
    assert names[255] == "<|reserved_special_token_247|>"


def test_other_tiktoken_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("YQ== 0\n")
    with pytest.raises(BadData, match="only Llama 3's"):
        huggingface_tokenizer.write(tokenizer_files.find(tmp_path), tmp_path / "out", 512, VOCABULARY)


@pytest.fixture
def model(run: Path) -> Path:
    """The Hugging Face directory that `run` was made of."""
    return run.parent / "source"


def edit(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | change))


def ids(directory: Path, file: str = "config.json") -> dict[str, Any]:
    return {name: value for name, value in json.loads((directory / file).read_text()).items() if name.endswith("_token_id")}


def test_a_cast_keeps_the_ids_and_the_generation_settings_of_the_model(model: Path, tmp_path: Path) -> None:
    given = {"bos_token_id": None, "eos_token_id": [2, 7], "pad_token_id": 11}
    edit(model / "config.json", given)
    generation = b'{"eos_token_id": [2, 7, 9],\n "temperature": 0.6}'
    (model / "generation_config.json").write_bytes(generation)
    conversion.convert(Request(str(model), "hf", str(tmp_path / "cast"), dtype="bfloat16"))
    assert ids(tmp_path / "cast") == given
    assert (tmp_path / "cast" / "generation_config.json").read_bytes() == generation
    for name in ("vocab.json", "merges.txt"):
        (model / name).unlink()
    conversion.convert(Request(str(model), "hf", str(tmp_path / "bare"), dtype="bfloat16"))
    assert ids(tmp_path / "bare") == given
    assert (tmp_path / "bare" / "generation_config.json").read_bytes() == generation


def test_generation_settings_travel_with_the_tokenizer(model: Path, tmp_path: Path) -> None:
    generation = b'{"bos_token_id": 5, "eos_token_id": [2, 7], "pad_token_id": 3}'
    (model / "generation_config.json").write_bytes(generation)
    conversion.convert(Request(str(model), "megatron-dist", str(tmp_path / "again")))
    conversion.convert(Request(str(tmp_path / "again"), "hf", str(tmp_path / "hf")))
    assert (tmp_path / "hf" / "generation_config.json").read_bytes() == generation
    assert ids(tmp_path / "hf") == ids(model)


@pytest.mark.parametrize("bad", [2048, -1, [2, 2048], [], "2", 2.0, True])
def test_ids_that_the_vocabulary_does_not_have_are_left_out(
    bad: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(model / "config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": bad})
    edit(model / "generation_config.json", {"eos_token_id": bad, "bos_token_id": 1, "top_p": 0.9})
    conversion.convert(Request(str(model), "hf", str(tmp_path / "cast"), dtype="bfloat16"))
    assert ids(tmp_path / "cast") == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
    assert json.loads((tmp_path / "cast" / "generation_config.json").read_text()) == {"bos_token_id": 1, "top_p": 0.9}
    warnings = capsys.readouterr().err
    assert f"config.json: pad_token_id is {bad!r}, the vocabulary has 2,048 tokens: left out" in warnings
    assert f"generation_config.json: eos_token_id is {bad!r}" in warnings


def test_a_tokenizer_larger_than_the_vocabulary(
    architectures: dict[str, Architecture], write_model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "small", architectures["grouped"])
    tokenizer_files.find(GPT2).copy_to(tmp_path / "small")
    conversion.convert(Request(str(tmp_path / "small"), "torchtitan", str(tmp_path / "dcp")))
    shutil.copy(tmp_path / "small" / "config.json", tmp_path / "dcp")
    tokenizer_files.find(GPT2).copy_to(tmp_path / "dcp")
    capsys.readouterr()
    conversion.convert(Request(str(tmp_path / "dcp"), "hf", str(tmp_path / "hf")))
    assert ids(tmp_path / "hf") == {"bos_token_id": None, "eos_token_id": None}
    warnings = capsys.readouterr().err
    assert "the tokenizer has ids up to 2,047, the model's vocabulary only 250 tokens" in warnings
    assert "the tokenizer: eos_token_id is 2047, the vocabulary has 250 tokens: left out" in warnings


def test_malformed_generation_settings(model: Path, tmp_path: Path) -> None:
    (model / "generation_config.json").write_text("[1]")
    with pytest.raises(BadData, match=r"source/generation_config\.json: not a JSON object"):
        conversion.convert(Request(str(model), "hf", str(tmp_path / "cast"), dtype="bfloat16"))
    assert not (tmp_path / "cast").exists()


def test_a_token_that_the_configuration_denies_is_not_guessed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    huggingface_tokenizer.write(tokenizer_files.find(GPT2), made, 512, VOCABULARY)
    edit(made / "tokenizer_config.json", {"bos_token": None, "pad_token": {"content": "!"}})
    found = huggingface_tokenizer.write(tokenizer_files.find(made), tmp_path / "out", 512, VOCABULARY)
    assert found == {"bos_token_id": None, "eos_token_id": 2047, "pad_token_id": 0}


def shifted(content: dict[str, Any], size: int) -> dict[str, Any]:
    """The content of a file with ids counted from the end of the vocabulary."""
    if "added_tokens_decoder" in content:
        return content | {
            "added_tokens_decoder": {str(number + size): entry for number, entry in content["added_tokens_decoder"].items()}
        }
    return {
        text: number + size if isinstance(number, int) and not isinstance(number, bool) else number
        for text, number in content.items()
    }


def write_source(place: Path, kind: str, name: str) -> int:
    """A tokenizer with the files of BESIDE; returns the size of its vocabulary."""
    place.mkdir()
    if kind == "gpt2":
        for file in ("vocab.json", "merges.txt"):
            shutil.copy(GPT2 / file, place)
        size = len(json.loads((place / "vocab.json").read_text()))
    else:
        text = [f"some words of text number {number} with a few letters" for number in range(200)]
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_writer=model, vocab_size=300, model_type="bpe", byte_fallback=True,
            minloglevel=2, normalization_rule_name="identity", remove_extra_whitespaces=False,
        )  # fmt: skip
        (place / "tokenizer.model").write_bytes(model.getvalue())
        size = 300
    configuration: dict[str, Any] = {"tokenizer_class": "GPT2Tokenizer" if kind == "gpt2" else "LlamaTokenizer"}
    for file, content in BESIDE[name].items():
        changed = shifted(content, size)
        (place / file).write_text(json.dumps(configuration | changed if file == "tokenizer_config.json" else changed))
    if "tokenizer_config.json" not in BESIDE[name]:
        (place / "tokenizer_config.json").write_text(json.dumps(configuration))
    return size


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("kind", ["gpt2", "sentencepiece"])
def test_ids_are_those_of_transformers(kind: str, name: str, tmp_path: Path) -> None:
    if (kind, name) == ("sentencepiece", "prefix-space"):
        return
    source = tmp_path / "source"
    size = write_source(source, kind, name)
    huggingface_tokenizer.write(tokenizer_files.find(source), tmp_path / "made", 512, 4096)
    stock, loaded = AutoTokenizer.from_pretrained(source), AutoTokenizer.from_pretrained(tmp_path / "made")
    made = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    added = {text: number for text, number in stock.get_added_vocab().items() if number >= size}
    assert added or name == "prefix-space"
    for text, number in added.items():
        assert made.token_to_id(text) == number
    for text in TEXTS_WITH_ADDED_TOKENS:
        expected = stock(text, add_special_tokens=False).input_ids
        assert loaded(text, add_special_tokens=False).input_ids == expected, text
        assert made.encode(text, add_special_tokens=False).ids == expected, text


def test_files_of_hugging_face_are_kept_as_they_are(tmp_path: Path) -> None:
    """A tokenizer.json beside a tokenizer.model is not made again: it may have tokens that the model lacks."""
    source = tmp_path / "source"
    write_source(source, "sentencepiece", "added-tokens")
    AutoTokenizer.from_pretrained(source).save_pretrained(tmp_path / "saved")
    shutil.copy(source / "tokenizer.model", tmp_path / "saved")
    huggingface_tokenizer.write(tokenizer_files.find(tmp_path / "saved"), tmp_path / "made", 512, 4096)
    for path in (tmp_path / "saved").iterdir():
        assert (tmp_path / "made" / path.name).read_bytes() == path.read_bytes(), path.name
