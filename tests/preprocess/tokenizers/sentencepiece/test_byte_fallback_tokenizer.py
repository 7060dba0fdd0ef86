"""tokenizer.json files with byte fallback: the ids and the text of Hugging Face's library, whatever puts spaces before texts."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from transformers.convert_slow_tokenizer import generate_merges

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import loading, vocabulary_cache
from lt_preprocess.tokenizers.base import SpecialTokens, Tokenizer
from lt_preprocess.tokenizers.files import tokenizer_json
from lt_preprocess.tokenizers.reference_libraries import HuggingFaceEncoder
from lt_preprocess.tokenizers.sentencepiece.byte_fallback_tokenizer import ByteFallbackBpe
from lt_shared.console import BadData
from lt_shared.tokenizers import sentencepiece_proto, tokenizer_files
from lt_shared.tokenizers.sentencepiece_proto import SPACE

MARK = normalizers.Replace(" ", SPACE)
CUT = pre_tokenizers.Split(" ", "merged_with_previous")
UNDO = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]


def metaspace(scheme: str, split: bool) -> pre_tokenizers.Metaspace:
    return pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=split)


FEW = 4000
SPELLINGS: dict[str, tuple[Any, Any, bool]] = {
    "llama": (normalizers.Sequence([normalizers.Prepend(SPACE), MARK]), None, True),
    "gemma": (MARK, CUT, False),
    "yi": (normalizers.Sequence([MARK]), None, False),
    "first": (None, metaspace("first", False), True),
    "always": (None, metaspace("always", False), True),
    "never": (None, metaspace("never", False), False),
    "words": (None, metaspace("always", True), True),
    "first word": (None, metaspace("first", True), True),
}
RUNS = ["\n" * count for count in range(2, 31)] + [SPACE * count for count in range(2, 31)]
GEMMA = [AddedToken(content, normalized=False) for content in [*RUNS, "<table>", "</h1>", "[multimodal]", "the"]]
PHI3 = [
    AddedToken("</s>", normalized=False, rstrip=True),
    AddedToken("<|user|>", normalized=False, rstrip=True, special=True),
    AddedToken("<|left|>", normalized=False, lstrip=True),
    AddedToken("<|both|>", normalized=False, lstrip=True, rstrip=True),
    AddedToken("\n\n", normalized=False),
]
CONTROLS = [AddedToken(content, normalized=False, special=True) for content in ("<unk>", "<s>", "<|end|>")]
NORMALIZED = [AddedToken("zebra", normalized=True), AddedToken("<s>s", normalized=True, rstrip=True)]

LITERALS = [*(token.content for token in [*PHI3, *CONTROLS, *NORMALIZED, *GEMMA[-4:]])]
CHARACTERS = (
    "ab et12.,'\n\n\n\t\r  \x1c\x85\xa0\u1680\u2003\u2028\u202f\u205f\u3000\u200b \u2581\u2580\ufeff\ufffd"
    "\xe9e\u0301\u4e2d\u6587\u0939\u093f\U0001f44d\U0010ffff\x00[<|>"
)
texts = st.lists(
    st.one_of(
        st.sampled_from([*LITERALS, "    ", "\u2581\u2581\u2581", "\n\n\n", "<0x0A>", "a" * 70, "\u4e2d\u6587" * 9, " the "]),
        st.text(CHARACTERS, max_size=30),
        st.text(max_size=20),
    ),
    max_size=10,
).map("".join)

HARD_TEXTS = [
    *(
        "",
        " ",
        "  ",
        "\u2581",
        "\0",
        "a\0b\0\0 \0",
        "\n\n\n",
        "\r\n\r\n x",
        "</s>",
        "</s> a",
        " </s>",
        "</s>\n\n\n a",
        "<s> a <s>b",
    ),
    *(
        "  a  b  ",
        " \u2581 \u2581\u2581 a \u2581 ",
        "other there",
        "x<|left|>",
        " \u3000<|left|>\u3000<|both|>\u3000",
        "<|both|>" * 3,
    ),
    *(
        " " * 200 + "x" + " " * 200,
        "\n" * 100,
        "\u2581" * 100,
        "<tab<table>le>",
        "e\u0301\u0301 \u212b \ufb01",
        "zebra zebras <s>s  x",
    ),
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd",
    "\ufffd\ufeff\U0010ffff\ue000 1234567890 \u0663\u0664 \xb2",
    "a" * 63 + " " + "a" * 64 + " " + "a" * 65 + "\u0430" * 5000,
]


@pytest.fixture(scope="session")
def pieces(sentencepiece_model: Path) -> dict[str, float]:
    """Mistral's pieces and their scores, in the order of their ids."""
    return {piece.text: piece.score for piece in sentencepiece_proto.read(sentencepiece_model).pieces}


@pytest.fixture(scope="session")
def make_json(pieces: dict[str, float], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_json(spelling, added)`: a tokenizer.json as transformers makes them of Mistral's model, with runs of white space.

    Of the first pieces and of all characters: reading and comparing all 32,000 takes five times as long.
    """
    few = {text: score for number, (text, score) in enumerate(pieces.items()) if number < FEW or len(text) == 1}
    return json_maker(few, tmp_path_factory)


@pytest.fixture(scope="session")
def make_large_json(pieces: dict[str, float], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The same with all pieces."""
    return json_maker(pieces, tmp_path_factory)


def json_maker(pieces: dict[str, float], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    scores = pieces | dict.fromkeys(RUNS, 0.0)
    ids = {text: number for number, text in enumerate(scores)}
    merges = generate_merges(ids, scores)

    def make(spelling: str, added: list[AddedToken], **model: Any) -> Path:
        made = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True, **model))
        normalizer, pre_tokenizer, strips = SPELLINGS[spelling]
        if normalizer is not None:
            made.normalizer = normalizer
        if pre_tokenizer is not None:
            made.pre_tokenizer = pre_tokenizer
        made.decoder = decoders.Sequence([*UNDO, decoders.Strip(" ", 1, 0)] if strips else UNDO)
        made.add_tokens(added)
        path = tmp_path_factory.mktemp("made") / "tokenizer.json"
        made.save(str(path))
        return path

    return make


def load(path: Path, special_tokens: SpecialTokens = "text") -> Tokenizer:
    return loading.load(tokenizer_files.find(path), special_tokens)


def reference(path: Path, special_tokens: SpecialTokens = "text") -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer.from_file(str(path))
    made.encode_special_tokens = special_tokens != "parse"
    return made


def is_compiled(tokenizer: Tokenizer) -> bool:
    return not isinstance(tokenizer.new_encoder(), HuggingFaceEncoder)


def encoded(tokenizer: Tokenizer, documents: list[str]) -> list[list[int]]:
    ids, lengths = tokenizer.new_encoder().encode(Texts.from_list([document.encode() for document in documents]))
    assert int(lengths.sum()) == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths))[:-1]]


def expected(library: tokenizers.Tokenizer, documents: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in library.encode_batch_fast(documents, add_special_tokens=False)]


def check(both: tuple[Tokenizer, tokenizers.Tokenizer], documents: list[str]) -> None:
    for document, found, right in zip(documents, encoded(both[0], documents), expected(both[1], documents), strict=True):
        assert found == right, document[:200]


CASES: list[tuple[str, list[AddedToken], SpecialTokens]] = [
    ("llama", CONTROLS, "text"),
    ("llama", CONTROLS, "parse"),
    ("llama", [*PHI3, *CONTROLS], "text"),
    ("llama", [*PHI3, *CONTROLS], "parse"),
    ("gemma", [*GEMMA, *CONTROLS], "text"),
    ("gemma", [*GEMMA, *CONTROLS], "parse"),
    ("yi", CONTROLS, "text"),
    ("first", [*PHI3, *CONTROLS, *NORMALIZED], "text"),
    ("first", [*PHI3, *CONTROLS, *NORMALIZED], "parse"),
    ("always", [*PHI3, *CONTROLS, *NORMALIZED], "parse"),
    ("never", [*PHI3, *CONTROLS], "parse"),
    ("words", [*GEMMA, *CONTROLS], "text"),
    ("first word", [*PHI3, *CONTROLS], "parse"),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]} {len(case[1])} {case[2]}")
def both(request: pytest.FixtureRequest, make_json: Callable[..., Path]) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    spelling, added, special_tokens = request.param
    path = make_json(spelling, added)
    tokenizer = load(path, special_tokens)
    assert is_compiled(tokenizer)
    return tokenizer, reference(path, special_tokens)


def test_corpus(both: tuple[Tokenizer, tokenizers.Tokenizer], texts: list[str]) -> None:
    check(both, HARD_TEXTS)
    check(both, texts[:60])


@settings(max_examples=15, deadline=None)
@given(st.lists(texts, max_size=5))
def test_any_texts(both: tuple[Tokenizer, tokenizers.Tokenizer], documents: list[str]) -> None:
    check(both, documents)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_decode(both: tuple[Tokenizer, tokenizers.Tokenizer], data: st.DataObject) -> None:
    """As the library, but for bytes that are no character: those stay what they are."""
    tokenizer, library = both
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    decoded = tokenizer.decode(np.array(ids, np.int32))
    text = library.decode(ids, skip_special_tokens=False)
    assert "\ufffd" in text or decoded.decode() == text
    encoded_text = encoded(tokenizer, [data.draw(texts)])[0]
    assert tokenizer.decode(encoded_text).decode() == library.decode(encoded_text, skip_special_tokens=False)


@pytest.mark.parametrize("spelling", ["llama", "gemma", "first"])
def test_every_code_point(make_json: Callable[..., Path], spelling: str) -> None:
    path = make_json(spelling, CONTROLS)
    # Beyond white space and the pieces, how texts are put together makes no difference: all for one spelling.
    steps = range(0x110000) if spelling == "gemma" else [*range(0x3100), *range(0x3100, 0x110000, 13)]
    points = [chr(point) for point in steps if not 0xD800 <= point < 0xE000]
    documents = ["".join(points[first : first + 1000]) for first in range(0, len(points), 1000)]
    documents += [f"a{one} {one}{one}'{one}" for one in points[:0x1000] + points[0x1000::797]]
    check((load(path), reference(path)), documents)


def test_every_piece(make_large_json: Callable[..., Path], pieces: dict[str, float]) -> None:
    path = make_large_json("gemma", CONTROLS)
    check((load(path), reference(path)), [one + other for one, other in zip(pieces, reversed(pieces), strict=True)])


random_texts = st.lists(st.text("ab\u2581 \xe9\u4e2d\U0001f44dc<0x>\0", max_size=80), min_size=1, max_size=3)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(sorted(SPELLINGS)), random_texts, st.text("ab", min_size=60, max_size=200))
def test_random_merges(
    tmp_path_factory: pytest.TempPathFactory, seed: int, spelling: str, documents: list[str], long_word: str
) -> None:
    """Merges in any order, listed twice, that make pieces in several ways, and characters that are no tokens."""
    numbers = random.Random(seed)
    tokens = [SPACE, *numbers.sample("ab\xe9\u4e2d<0x>c", numbers.randint(2, 7))]
    merges = []
    for _ in range(numbers.randint(0, 40)):
        pair = tuple(numbers.choices(tokens, k=2))
        if len("".join(pair)) < 8:
            merges.append(pair)
            tokens.append("".join(pair))
    numbers.shuffle(merges)
    vocabulary = [*dict.fromkeys(tokens), *(f"<0x{byte:02X}>" for byte in range(256)), "<unk>"]
    numbers.shuffle(vocabulary)
    ids = {token: number for number, token in enumerate(vocabulary)}
    made = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True))
    normalizer, pre_tokenizer, _ = SPELLINGS[spelling]
    if normalizer is not None:
        made.normalizer = normalizer
    if pre_tokenizer is not None:
        made.pre_tokenizer = pre_tokenizer
    made.decoder = decoders.Sequence(UNDO)
    path = tmp_path_factory.getbasetemp() / "random" / "tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    made.save(str(path))
    content = json.loads(path.read_bytes())
    content["model"]["merges"] += [list(pair) for pair in merges[::3]]
    path.write_text(json.dumps(content))
    check((ByteFallbackBpe(tokenizer_json.read(tokenizer_files.find(path))), reference(path)), [*documents, long_word])


def test_very_long_words_take_no_quadratic_time(make_json: Callable[..., Path]) -> None:
    tokenizer = load(make_json("gemma", CONTROLS))
    encoder = tokenizer.new_encoder()
    for word in ("a" * 500_000, "ab" * 250_000, "=" * 500_000, "\u0430\u0431" * 125_000):
        start = time.thread_time()
        ids, _ = encoder.encode(Texts.from_list([word.encode()]))
        assert time.thread_time() - start < 3
        assert tokenizer.decode(ids) == word.encode()


def test_the_tables_come_from_the_cache(make_json: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_json("gemma", GEMMA)
    monkeypatch.setattr("lt_preprocess.compiler.jit.cache_directory", lambda: tmp_path)
    first = encoded(load(path), HARD_TEXTS)
    (kept,) = tmp_path.glob("tables-*.npz")
    with monkeypatch.context() as without:
        without.setattr("lt_preprocess.tokenizers.sentencepiece.piece_tables._build_from_merges", None)
        assert encoded(load(path), HARD_TEXTS) == first
    kept.write_bytes(kept.read_bytes()[:5000])
    assert encoded(load(path), HARD_TEXTS) == first
    assert len(kept.read_bytes()) > 5000


def test_without_a_cache(make_json: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_json("first", PHI3)
    monkeypatch.setattr(vocabulary_cache, "place", lambda kind, key: None)
    assert encoded(load(path), HARD_TEXTS) == expected(reference(path), HARD_TEXTS)


def test_properties(make_json: Callable[..., Path]) -> None:
    path = make_json("llama", [*PHI3, *CONTROLS])
    tokenizer, ids = load(path), reference(path).get_vocab()
    assert (tokenizer.vocab_size, tokenizer.eod) == (max(ids.values()) + 1, ids["</s>"])
    assert tokenizer.special_tokens == {token: ids[token] for token in ("<unk>", "<s>", "<|user|>", "<|end|>")}
    with pytest.raises(BadData, match=f"token id {tokenizer.vocab_size} is not"):
        tokenizer.decode([5, tokenizer.vocab_size])


def without_byte(vocabulary: dict[str, int], byte: int) -> dict[str, int]:
    """Gemma 1 gives the id of the byte to the character."""
    return {chr(byte) if token == f"<0x{byte:02X}>" else token: number for token, number in vocabulary.items()}


def test_a_byte_whose_character_is_a_token(make_json: Callable[..., Path]) -> None:
    path = make_json("gemma", CONTROLS)
    content = json.loads(path.read_bytes())
    content["model"]["vocab"] = without_byte(content["model"]["vocab"], 9)
    path.write_text(json.dumps(content))
    tokenizer = load(path)
    assert is_compiled(tokenizer)
    check((tokenizer, reference(path)), ["\t", "a\t\tb \t", *HARD_TEXTS])


def change(**parts: Any) -> Callable[[dict[str, Any]], None]:
    def apply(content: dict[str, Any]) -> None:
        for name, value in parts.items():
            place = content["model"] if name in content["model"] or name == "ignore_merges" else content
            place[name] = value(place[name]) if callable(value) else value

    return apply


MARKED = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
LEFT_TO_THE_LIBRARY: dict[str, Callable[[dict[str, Any]], None]] = {
    "a text that is a token stays whole": change(ignore_merges=True, added_tokens=[]),
    "it normalizes text by Replace": change(normalizer=MARKED | {"content": "_"}),
    "it normalizes text by NFKC, Replace": change(normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, MARKED]}),
    "it normalizes text by nothing": change(normalizer=None),
    "it cuts text by Digits": change(pre_tokenizer={"type": "Digits", "individual_digits": True}),
    "it cuts text by Split": change(
        pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": True}
    ),
    "it writes spaces in a way of its own": change(
        normalizer=None, pre_tokenizer={"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": False}
    ),
    "1 bytes have no token": change(
        added_tokens=[], vocab=lambda vocabulary: {k: v for k, v in vocabulary.items() if k != "<0xC3>"}
    ),
    "it decodes by ByteFallback": change(decoder={"type": "ByteFallback"}),
    "it merges bytes": change(
        added_tokens=[],
        vocab=lambda vocabulary: vocabulary | {"<0xC3><0xA9>": len(vocabulary)},
        merges=lambda merges: [*merges, ["<0xC3>", "<0xA9>"]],
    ),
    "token zebra is looked for in the normalized text": change(added_tokens=lambda added: [*added, ZEBRA]),
    "token zebra is looked for between words only": change(
        added_tokens=lambda added: [*added, ZEBRA | {"single_word": True, "normalized": False}]
    ),
}
ZEBRA = {"content": "zebra", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}


@pytest.mark.parametrize("reason", LEFT_TO_THE_LIBRARY)
def test_left_to_the_library(make_json: Callable[..., Path], capsys: pytest.CaptureFixture[str], reason: str) -> None:
    path = make_json("gemma", CONTROLS)
    content = json.loads(path.read_bytes())
    LEFT_TO_THE_LIBRARY[reason](content)
    for token in content["added_tokens"]:
        token.setdefault("id", max(content["model"]["vocab"].values()) + 2)
    path.write_text(json.dumps(content))
    tokenizer = load(path)
    assert not is_compiled(tokenizer)
    assert reason in capsys.readouterr().err
    check((tokenizer, reference(path)), HARD_TEXTS)
