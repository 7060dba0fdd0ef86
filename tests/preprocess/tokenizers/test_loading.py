"""What every kind of tokenizer has alike: texts, names in manifests, and the three ways to treat special tokens in a text."""

import shutil
from pathlib import Path

import pytest
import sentencepiece

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import loading
from lt_preprocess.tokenizers.base import SpecialTokens, Tokenizer
from lt_shared.tokenizers import tokenizer_files


def load(path: Path, special_tokens: SpecialTokens) -> Tokenizer:
    return loading.load(tokenizer_files.find(path), special_tokens)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(number) for number in tokenizer.new_encoder().encode(Texts.from_list([text.encode()]))[0]]


@pytest.fixture(params=["gpt2", "llama3", "sentencepiece"])
def path_and_token(
    request: pytest.FixtureRequest, gpt2_vocabulary: Path, llama3_model: Path, sentencepiece_model: Path
) -> tuple[Path, str, int]:
    return {
        "gpt2": (gpt2_vocabulary, "<|endoftext|>", 50256),
        "llama3": (llama3_model, "<|eot_id|>", 128009),
        "sentencepiece": (sentencepiece_model, "</s>", 2),
    }[request.param]


def test_special_tokens(path_and_token: tuple[Path, str, int]) -> None:
    path, token, number = path_and_token
    text = f"one {token} two"
    as_text = load(path, "text")
    assert number not in ids_of(as_text, text)
    assert as_text.new_encoder().forbidden(Texts.from_list([text.encode()])) == []
    parsed = ids_of(load(path, "parse"), text)
    assert parsed == [*ids_of(as_text, "one "), number, *ids_of(as_text, " two")]
    rejecting = load(path, "reject")
    assert ids_of(rejecting, text) == ids_of(as_text, text)
    found = rejecting.new_encoder().forbidden(Texts.from_list([b"", text.encode(), b"one"]))
    assert found == [(1, 4, token)]
    assert as_text.special_tokens[token] == rejecting.special_tokens[token] == number


def test_a_sentencepiece_model_without_control_symbols(tmp_path: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["one two three four"] * 10),
        model_prefix=str(tmp_path / "tokenizer"),
        vocab_size=18,
        model_type="bpe",
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    for special_tokens in ("text", "parse", "reject"):
        tokenizer = load(tmp_path / "tokenizer.model", special_tokens)
        assert (tokenizer.eod, dict(tokenizer.special_tokens)) == (None, {})
        assert tokenizer.decode(ids_of(tokenizer, "one two")) == b"one two"


def test_texts_without() -> None:
    texts = Texts.from_list([b"a", b"", b"\xc3\xa9", b"b"])
    assert texts.without([0, 2]).to_list() == [b"", b"b"]
    assert texts.without([]).to_list() == texts.to_list()


def test_identity_of_a_path_and_of_a_name(demo_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = loading.identity(tokenizer_files.find(demo_tokenizer), demo_tokenizer)
    assert (given.name, given.path) == ("tokenizer", str(demo_tokenizer))
    (tmp_path / "small").symlink_to(demo_tokenizer)
    monkeypatch.setenv("LT_TOKENIZERS", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    named = loading.identity(tokenizer_files.find("small"), "small")
    assert named.sha256 == given.sha256
    assert named.path is not None
    assert tokenizer_files.find(named.path).sha256() == given.sha256


def test_megatron_parses_special_tokens_except_in_sentencepiece(
    demo_tokenizer: Path, sentencepiece_model: Path, tmp_path: Path
) -> None:
    """What the manual says that Megatron does."""
    from megatron.core.tokenizers.text.libraries.huggingface_tokenizer import HuggingFaceTokenizer
    from megatron.core.tokenizers.text.libraries.sentencepiece_tokenizer import SentencePieceTokenizer

    text = "a<|endoftext|>b</s>c"
    gpt2 = shutil.copytree(demo_tokenizer, tmp_path / "gpt2")
    (gpt2 / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert ids_of(load(gpt2, "parse"), text) == HuggingFaceTokenizer(str(gpt2)).text_to_ids(text)
    assert ids_of(load(sentencepiece_model, "text"), text) == SentencePieceTokenizer(str(sentencepiece_model)).text_to_ids(text)
