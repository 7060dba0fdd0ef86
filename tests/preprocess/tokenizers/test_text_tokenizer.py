"""`lt_preprocess.load_tokenizer`: the ids that the program writes, which are those of the library that defines the tokenizer."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import lt_preprocess
from lt_preprocess.tokenizers.text_tokenizer import TextTokenizer
from lt_shared import BadData, NoInput, UsageError
from lt_shared.contracts import manifest
from lt_shared.data import indexed_dataset
from lt_shared.tokenizers import tokenizer_files

ODD_TEXTS = [
    " ",
    "  a  b ",
    "\0a\0",
    "\r\n\n\t",
    "日本語 \U0001f44d\U0001f3fd \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "<|endoftext|> <s> </s> <0x0A>",
    "e\u0301 \ufb01 \ufeff\ufffd\U0010ffff",
    "a" * 5000,
]
DEMO = Path(__file__).parents[2] / "demo/tokenizer"


@pytest.fixture(scope="module", params=["demo", "llama3", "sentencepiece"])
def path(request: pytest.FixtureRequest, demo_tokenizer: Path, llama3_model: Path, sentencepiece_model: Path) -> Path:
    return {"demo": demo_tokenizer, "llama3": llama3_model, "sentencepiece": sentencepiece_model}[request.param]


@pytest.fixture(scope="module")
def demo() -> TextTokenizer:
    return lt_preprocess.load_tokenizer(DEMO)


@pytest.mark.parametrize("special_tokens", ["text", "parse"])
def test_the_ids_are_those_of_the_dataset(
    build: Callable[..., manifest.Dataset], tmp_path: Path, texts: list[str], path: Path, special_tokens: Any
) -> None:
    documents = [*ODD_TEXTS, *texts[:200]]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    made = build([tmp_path / "in.jsonl"], path, tmp_path / "out", special_tokens=special_tokens)
    tokenizer = lt_preprocess.load_tokenizer(path, special_tokens)
    assert (tokenizer.vocab_size, tokenizer.eod) == (made.vocab_size, made.eod)
    assert made.tokenizer is not None and tokenizer.sha256 == made.tokenizer.sha256
    with indexed_dataset.open(made.prefix) as dataset:
        assert len(dataset.documents) == len(documents)
        for text, batched, expected in zip(documents, tokenizer.encode_batch(documents), dataset.documents, strict=True):
            for found in (tokenizer.encode(text), batched):
                assert found.dtype == expected.dtype == tokenizer.dtype
                np.testing.assert_array_equal(found, expected)


@settings(max_examples=50)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_the_ids_are_tiktokens(texts: list[str], demo: TextTokenizer, demo_reference: tiktoken.Encoding) -> None:
    assert [ids.tolist() for ids in demo.encode_batch(texts)] == [demo_reference.encode_ordinary(text) for text in texts]
    assert [demo.decode(demo.encode(text)) for text in texts] == texts


def test_the_ids_are_sentencepieces(sentencepiece_model: Path) -> None:
    tokenizer = lt_preprocess.load_tokenizer(sentencepiece_model)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    for text in ODD_TEXTS:
        assert tokenizer.encode(text).tolist() == reference.encode(text, out_type=int)


def test_the_ids_are_those_of_tokenizers(tmp_path: Path) -> None:
    made = tokenizers.ByteLevelBPETokenizer(str(DEMO / "vocab.json"), str(DEMO / "merges.txt"))
    made.add_tokens(["zebra crossing"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = lt_preprocess.load_tokenizer(tmp_path / "tokenizer.json")
    for text in ["", "a zebra crossing", *ODD_TEXTS[:5]]:
        ids = made.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text).tolist() == ids
        assert tokenizer.decode(ids) == text


def test_no_text_and_no_texts(demo: TextTokenizer) -> None:
    assert (demo.encode("").shape, demo.encode("").dtype) == ((0,), np.uint16)
    assert demo.encode_batch([]) == []
    assert [ids.tolist() for ids in demo.encode_batch(iter(["", "a", ""]))] == [[], demo.encode("a").tolist(), []]
    assert demo.decode([]) == ""


def test_special_tokens_are_text_a_token_or_refused(demo: TextTokenizer) -> None:
    text = "a<|endoftext|>"
    assert demo.eod is not None and demo.special_tokens == {"<|endoftext|>": demo.eod}
    assert demo.eod not in demo.encode(text)
    assert lt_preprocess.load_tokenizer(DEMO, "parse").encode(text).tolist() == [*demo.encode("a").tolist(), demo.eod]
    rejecting = lt_preprocess.load_tokenizer(DEMO, "reject")
    with pytest.raises(BadData, match=r"^text 1: special token <\|endoftext\|> at byte 1 of the text$"):
        rejecting.encode_batch(["b", text])
    assert rejecting.encode("b").tolist() == demo.encode("b").tolist()
    with pytest.raises(UsageError, match="text, parse, reject"):
        lt_preprocess.load_tokenizer(DEMO, "keep")  # type: ignore[arg-type]


def test_half_of_a_surrogate_pair_is_refused_and_the_hint_mends_it(demo: TextTokenizer) -> None:
    with pytest.raises(BadData, match=r"text 1: the character at 2 is U\+D800, half of a surrogate pair") as raised:
        demo.encode_batch(["fine", "ab\ud800"])
    assert raised.value.hint is not None
    mended = eval(raised.value.hint.partition(" joins")[0], {"text": "ab\ud800 \ud83d\udc4d"})
    assert mended == "ab\ufffd \U0001f44d" and demo.decode(demo.encode(mended)) == mended


@pytest.mark.parametrize("wrong", [b"bytes", 5, None, ["text"]])
def test_what_is_no_text(demo: TextTokenizer, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^text 0 is \w+; expected str$"):
        demo.encode(wrong)


def test_one_text_is_no_batch(demo: TextTokenizer) -> None:
    with pytest.raises(TypeError, match="takes several texts"):
        demo.encode_batch("text")


def test_decoding(path: Path) -> None:
    tokenizer = lt_preprocess.load_tokenizer(path)
    ids = tokenizer.encode("Grüße \U0001f44d")
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == tokenizer.decode(tuple(ids)) == "Grüße \U0001f44d"
    for wrong, message in (([-1], "token id -1 "), ([tokenizer.vocab_size], f"token id {tokenizer.vocab_size} ")):
        with pytest.raises(BadData, match=message):
            tokenizer.decode(wrong)
    for ids_of_no_kind in ([1.5], [[1]], 1):
        with pytest.raises(TypeError, match="expected integers of shape"):
            tokenizer.decode(ids_of_no_kind)  # type: ignore[arg-type]


def test_half_of_a_character_is_decoded_to_a_replacement(demo: TextTokenizer) -> None:
    assert demo.decode(demo.encode("\U0001f9ff")[:-1]).endswith("\ufffd")


def test_threads_share_a_tokenizer(texts: list[str]) -> None:
    tokenizer = lt_preprocess.load_tokenizer(DEMO)
    expected = [lt_preprocess.load_tokenizer(DEMO).encode(text).tolist() for text in texts[:50]]
    with ThreadPoolExecutor(8) as pool:
        assert [ids.tolist() for ids in pool.map(tokenizer.encode, texts[:50] * 8)] == expected * 8


def test_results_stay_when_the_encoder_is_used_again(demo: TextTokenizer) -> None:
    first = demo.encode("one and two")
    kept = first.copy()
    demo.encode("something else that is longer")
    np.testing.assert_array_equal(first, kept)
    first[:] = 0
    np.testing.assert_array_equal(demo.encode("one and two"), kept)


def test_a_name_and_what_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tokenizer_files.find(DEMO).copy_to(tmp_path / "ours")
    monkeypatch.setenv("LT_TOKENIZERS", str(tmp_path))
    tokenizer = lt_preprocess.load_tokenizer("ours")
    assert repr(tokenizer) == "<TextTokenizer ours: 2,048 entries, uint16>"
    assert len(tokenizer) == 2048
    with pytest.raises(NoInput):
        lt_preprocess.load_tokenizer(tmp_path / "gone")
    monkeypatch.chdir(tmp_path / "ours")
    with pytest.raises(UsageError, match="an empty path"):
        lt_preprocess.load_tokenizer("")
    with pytest.raises(NoInput, match="no such file, directory or tokenizer"):
        lt_preprocess.load_tokenizer("theirs")


def test_it_works_with_all_standard_streams_closed() -> None:
    code = f"""
import os, lt_preprocess
ids = lt_preprocess.load_tokenizer({str(DEMO)!r}).encode("text")
os._exit(0 if len(ids) else 1)
"""
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(command).returncode == 0


def test_another_process_loads_its_own(demo_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    monkeypatch.chdir(demo_tokenizer.parent)
    tokenizer = lt_preprocess.load_tokenizer(demo_tokenizer.name, "parse")
    content = pickle.dumps(tokenizer)
    assert len(content) < 1000
    monkeypatch.chdir("/")
    other = pickle.loads(content)
    assert (other.sha256, other.name) == (tokenizer.sha256, tokenizer.name)
    assert np.array_equal(other.encode("as before <|endoftext|>"), tokenizer.encode("as before <|endoftext|>"))
