"""Byte-level BPE from any files: the ids and the text of the library that defines the tokenizer, added tokens and all."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import loading, split_patterns, vocabulary
from lt_preprocess.tokenizers.base import SpecialTokens, Tokenizer
from lt_preprocess.tokenizers.files import tiktoken_ranks
from lt_preprocess.tokenizers.python_bpe import UncompiledEncoder
from lt_preprocess.tokenizers.reference_libraries import HuggingFaceEncoder
from lt_shared.console import BadData
from lt_shared.tokenizers import tokenizer_files
from lt_shared.tokenizers.byte_symbols import SYMBOL_OF_BYTE

RANKS = 6000
ADDED = [
    AddedToken("<|endoftext|>", special=True, normalized=False),
    AddedToken("<|im_start|>", special=True, normalized=False, lstrip=True, rstrip=True),
    AddedToken("<tool_call>", special=False, normalized=False),
    AddedToken("<tool", special=False, normalized=False),
    AddedToken("|><|", special=False, normalized=False),
    AddedToken("  ", special=False, normalized=True),
    AddedToken("caf\xe9", special=False, normalized=True),
    AddedToken("<|special normalized|>", special=True, normalized=True),
]

LITERALS = [token.content for token in ADDED]
MARKS = "e\u0301\u0323\u0302\u0345\u0bc6\u0bbe\u09c7\u09be\u1112\u1161\u11ab\u0958\u212b\ufb01\u0f71\u0f72\u07fd\u1ab0"
CHARACTERS = (
    "'stremvldSTREMVLD\u017f \t\n\r\x0b\x1c\x85\xa0\u2028\u3000\u200b1\u0663\xb2\u216b!<|>_\xe9\u4e2d\u0939\U0001f468\u200d\0a"
)
pieces = st.sampled_from(
    [*LITERALS, "don't", "\r\n \n", "   ", "12345", "<|im_", "<tool_", "cafe\u0301", "\u65e5\u672c", "a" * 70]
)
texts = st.lists(
    st.one_of(
        pieces,
        st.text(st.sampled_from(CHARACTERS), max_size=20),
        st.text(st.sampled_from(MARKS), max_size=6),
        st.text(max_size=20),
    ),
    max_size=8,
).map("".join)


@pytest.fixture(scope="session")
def make_json(qwen_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_json(regex, normalizer, added)`: a tokenizer.json over the first ranks of Qwen's vocabulary."""
    ranks = {token: rank for token, rank in tiktoken_ranks.read_ranks(qwen_model).items() if rank < RANKS}
    plain = vocabulary.from_ranks(ranks, 0, 0, None)
    spelled = {rank: "".join(SYMBOL_OF_BYTE[byte] for byte in token) for token, rank in ranks.items()}
    # As GPT-2's merges: for each token the one pair that a merge of lower ranks leaves.
    rank_of_pair = {(left, right): rank for left, right, rank, _ in plain.merges.tolist()}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__):
        parts = [ranks[bytes([byte])] for byte in token]
        while len(parts) > 2:
            pairs = [rank_of_pair.get(pair, RANKS) for pair in itertools.pairwise(parts)]
            at = pairs.index(min(pairs))
            parts[at : at + 2] = [pairs[at]]
        if len(parts) == 2:
            merges.append((spelled[parts[0]], spelled[parts[1]]))

    def make(regex: str | tuple[str, ...], normalizer: Any = None, added: list[AddedToken] = ADDED, **model: Any) -> Path:
        made = tokenizers.Tokenizer(models.BPE({token: rank for rank, token in spelled.items()}, merges, **model))
        if regex == split_patterns.GPT2:
            made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        elif regex == split_patterns.STARCODER:
            digits = pre_tokenizers.Digits(individual_digits=True)
            made.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        else:
            to_symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            steps = [pre_tokenizers.Split(Regex(step), "isolated") for step in ([regex] if isinstance(regex, str) else regex)]
            made.pre_tokenizer = pre_tokenizers.Sequence([*steps, to_symbols])
        made.decoder = decoders.ByteLevel()
        if normalizer is not None:
            made.normalizer = normalizer
        made.add_tokens(added)
        path = tmp_path_factory.mktemp("made") / "tokenizer.json"
        made.save(str(path))
        return path

    return make


def load(path: Path, special_tokens: SpecialTokens = "text") -> Tokenizer:
    return loading.load(tokenizer_files.find(path), special_tokens)


def reference(path: Path, special_tokens: SpecialTokens) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer.from_file(str(path))
    made.encode_special_tokens = special_tokens != "parse"
    return made


def is_compiled(tokenizer: Tokenizer) -> bool:
    return not isinstance(tokenizer.new_encoder(), HuggingFaceEncoder | UncompiledEncoder)


CASES = [
    ("gpt2", split_patterns.GPT2, None, "text"),
    ("llama3", split_patterns.LLAMA3, None, "text"),
    ("llama3", split_patterns.LLAMA3, None, "parse"),
    ("qwen2", split_patterns.QWEN2, normalizers.NFC(), "text"),
    ("llama3 nfc", split_patterns.LLAMA3, normalizers.Sequence([normalizers.NFC()]), "text"),
    ("gpt2 nfc", split_patterns.GPT2, normalizers.NFC(), "parse"),
    ("tekken", split_patterns.TEKKEN, None, "text"),
    ("o200k", split_patterns.O200K, None, "text"),
    ("qwen35", split_patterns.QWEN35, normalizers.NFC(), "parse"),
    ("cl100k", split_patterns.CL100K, None, "text"),
    ("kimi", split_patterns.KIMI, None, "text"),
    ("deepseek", split_patterns.DEEPSEEK, None, "text"),
    ("deepseek", split_patterns.DEEPSEEK, None, "parse"),
    ("starcoder", split_patterns.STARCODER, None, "text"),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]} {case[3]}")
def both(request: pytest.FixtureRequest, make_json: Callable[..., Path]) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    _, regex, normalizer, special_tokens = request.param
    path = make_json(regex, normalizer, ADDED, ignore_merges="llama3" in request.param[0])
    tokenizer = load(path, special_tokens)
    assert is_compiled(tokenizer) == (split_patterns.code(regex) != split_patterns.NOT_COMPILED)
    return tokenizer, reference(path, special_tokens)


def encoded(tokenizer: Tokenizer, documents: list[str]) -> list[list[int]]:
    ids, lengths = tokenizer.new_encoder().encode(Texts.from_list([document.encode() for document in documents]))
    assert int(lengths.sum()) == len(ids)
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths))[:-1]]


def expected(library: tokenizers.Tokenizer, documents: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in library.encode_batch_fast(documents, add_special_tokens=False)]


@settings(max_examples=12, deadline=None)
@given(st.lists(texts, max_size=5))
def test_any_texts(both: tuple[Tokenizer, tokenizers.Tokenizer], documents: list[str]) -> None:
    assert encoded(both[0], documents) == expected(both[1], documents)


def test_corpus(both: tuple[Tokenizer, tokenizers.Tokenizer], texts: list[str]) -> None:
    assert encoded(both[0], texts[:40]) == expected(both[1], texts[:40])


def test_many_matches_in_one_text(both: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    """More matches than there is room for at first, side by side, at both ends, and within reach of the next text."""
    documents = [
        "<tool_call>" * 3000,
        "",
        "a<tool_call>  <tool",
        "_call>",
        "<tool<tool_call",
        "x" * 63 + "<tool_call>" + "y" * 200,
    ]
    assert encoded(both[0], documents) == expected(both[1], documents)


def test_vocabulary_and_eod(both: tuple[Tokenizer, tokenizers.Tokenizer]) -> None:
    ids = both[1].get_vocab()
    assert (both[0].vocab_size, both[0].eod) == (max(ids.values()) + 1, ids["<|endoftext|>"])
    assert both[0].special_tokens["<|endoftext|>"] == ids["<|endoftext|>"]


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_decode(both: tuple[Tokenizer, tokenizers.Tokenizer], data: st.DataObject) -> None:
    """As the library, but for ids that cut a character: those keep their bytes."""
    tokenizer, library = both
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    decoded = tokenizer.decode(np.array(ids, np.int32))
    # Of an added token that is not ASCII the library takes the characters for symbols.
    if library.token_to_id("caf\xe9") not in ids:
        assert decoded.decode("utf-8", "replace") == library.decode(ids, skip_special_tokens=False)
    assert b"".join(tokenizer.decode([number]) for number in ids) == decoded


def test_text_comes_back(make_json: Callable[..., Path], texts: list[str]) -> None:
    tokenizer = load(make_json(split_patterns.LLAMA3))
    for text in texts[:100]:
        assert tokenizer.decode(encoded(tokenizer, [text])[0]) == text.encode()


def test_decode_an_id_that_is_not_there(make_json: Callable[..., Path], demo_tokenizer: Path) -> None:
    for path in (demo_tokenizer, make_json(split_patterns.GPT2)):
        tokenizer = load(path)
        with pytest.raises(BadData, match=f"token id {tokenizer.vocab_size} is not"):
            tokenizer.decode([0, tokenizer.vocab_size])


@pytest.mark.parametrize("token", ["<|im_start|>", "<tool_call>"])
def test_reject_names_special_tokens_only(make_json: Callable[..., Path], token: str) -> None:
    encoder = load(make_json(split_patterns.LLAMA3), "reject").new_encoder()
    documents = ["no", "", f"\xe9 {token} <|endoftext|>", "<|endoftext|", "<|endoftext|>"]
    found = encoder.forbidden(Texts.from_list([document.encode() for document in documents]))
    first = token if token.startswith("<|") else "<|endoftext|>"
    offset = documents[2].encode().index(first.encode())
    assert found == [(2, offset, first), (4, 0, "<|endoftext|>")]
    assert str(found[0]) == f"special token {first} at byte {offset} of the text"


@pytest.mark.parametrize("special_tokens", ["text", "parse"])
def test_nothing_is_forbidden_otherwise(make_json: Callable[..., Path], special_tokens: SpecialTokens) -> None:
    encoder = load(make_json(split_patterns.LLAMA3), special_tokens).new_encoder()
    assert encoder.forbidden(Texts.from_list([b"<|endoftext|>"])) == []


def change(path: Path, **parts: Any) -> Path:
    """Change entries of a tokenizer.json; `model__dropout=0.5` changes one of the model's."""
    content = json.loads(path.read_bytes())
    for name, value in parts.items():
        *places, last = name.split("__")
        place = content
        for part in places:
            place = place[part]
        place[last] = value
    path.write_text(json.dumps(content))
    return path


SPLIT = {"type": "Split", "pattern": {"Regex": split_patterns.LLAMA3}, "behavior": "Isolated", "invert": False}
TO_SYMBOLS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": False}
WITH_REGEX = TO_SYMBOLS | {"use_regex": True}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Sequence", "normalizers": []}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT | {"behavior": "Removed", "invert": True}, TO_SYMBOLS]}},
        {"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}},
        {"model__dropout": None, "model__continuing_subword_prefix": "", "model__unk_token": None},
    ],
)
def test_what_changes_nothing_stays_fast(make_json: Callable[..., Path], texts: list[str], parts: dict[str, Any]) -> None:
    path = change(make_json(split_patterns.LLAMA3), **parts)
    tokenizer = load(path)
    assert is_compiled(tokenizer)
    library = reference(path, "text")
    library.no_truncation()
    assert encoded(tokenizer, texts[:50]) == expected(library, texts[:50])


def test_merges_that_are_dropped_at_random_are_refused(make_json: Callable[..., Path]) -> None:
    with pytest.raises(BadData, match=r"drops merges at random \(dropout 0.5\)"):
        load(change(make_json(split_patterns.LLAMA3), model__dropout=0.5))


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"normalizer": {"type": "NFKC"}}, "it normalizes text by NFKC"),
        ({"normalizer": {"type": "Lowercase"}}, "it normalizes text by Lowercase"),
        ({"pre_tokenizer": None}, "it does not cut text into words"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [DIGITS, WITH_REGEX]}}, "it cuts text by Digits, ByteLevel"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, WITH_REGEX]}},
            "it cuts text by a pattern that is not compiled",
        ),
        ({"pre_tokenizer": WITH_REGEX | {"add_prefix_space": True}}, "adds a space before text"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT | {"pattern": {"Regex": r"\S+|\s+"}}, TO_SYMBOLS]}},
            "it cuts text by a pattern that is not compiled",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT | {"invert": True}, TO_SYMBOLS]}},
            "it cuts text by Split",
        ),
        ({"model__end_of_word_suffix": "</w>", "model__merges": []}, "its model has end_of_word_suffix"),
    ],
)
def test_what_is_not_covered_goes_to_the_library(
    make_json: Callable[..., Path], capsys: pytest.CaptureFixture[str], texts: list[str], parts: dict[str, Any], reason: str
) -> None:
    path = change(make_json(split_patterns.LLAMA3), **parts)
    tokenizer = load(path)
    assert not is_compiled(tokenizer)
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 1
    assert reason in notes[0]
    assert encoded(tokenizer, texts[:20]) == expected(reference(path, "text"), texts[:20])


WHITE_SPACE = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2007\u200a\u2028\u2029\u202f\u205f\u3000"
NO_WHITE_SPACE = "\x08\x0e\x1c\x1f\x84\u1681\u180e\u200b\u2027\u202e\u2060\u3001\ufeff\xe9"


def test_added_tokens_for_single_words(make_json: Callable[..., Path]) -> None:
    path = make_json(split_patterns.LLAMA3, None, [AddedToken("hum", special=False, normalized=False, single_word=True)])
    tokenizer = load(path)
    assert not is_compiled(tokenizer)
    documents = ["hum", "human hum ,hum, x hum  y"]
    assert encoded(tokenizer, documents) == expected(reference(path, "text"), documents)


@pytest.mark.parametrize("normalized", [False, True])
def test_added_tokens_that_strip(make_json: Callable[..., Path], normalized: bool) -> None:
    """Also where another token begins in the white space that one takes, and where white space is a token itself."""
    sides = {"left": (True, False), "right": (False, True), "both": (True, True), "\n": (False, False), "\u3000": (False, True)}
    added = [AddedToken(content, normalized=normalized, lstrip=left, rstrip=right) for content, (left, right) in sides.items()]
    path = make_json(split_patterns.LLAMA3, None, added)
    tokenizer = load(path)
    assert is_compiled(tokenizer)
    documents = [f"a{one}{side}{one}{other}b" for side in sides for one in WHITE_SPACE + NO_WHITE_SPACE for other in ("", *sides)]
    documents += ["".join(parts) for parts in itertools.product(["left", "right", "both", " ", "\n", "\u3000 "], repeat=4)]
    assert encoded(tokenizer, documents) == expected(reference(path, "text"), documents)


def test_an_added_token_with_an_id_of_its_own(make_json: Callable[..., Path]) -> None:
    """The library numbers added tokens itself; a file that says otherwise means what the library makes of it."""
    path = make_json(split_patterns.LLAMA3)
    added = json.loads(path.read_bytes())["added_tokens"]
    added[2]["id"] += 100
    tokenizer = load(change(path, added_tokens=added))
    assert not is_compiled(tokenizer)
    assert encoded(tokenizer, ["<tool_call>"]) == expected(reference(path, "text"), ["<tool_call>"])


@pytest.mark.parametrize(("missing", "is_fast"), [(range(0xF5, 0x100), True), ([0xC0, 0xC1], True), ([0xC2], False)])
def test_bytes_without_a_token(make_json: Callable[..., Path], missing: Sequence[int], is_fast: bool) -> None:
    """GPT-NeoX has no tokens for the bytes that never occur in UTF-8."""
    path = make_json(split_patterns.GPT2)
    model = json.loads(path.read_bytes())["model"]
    absent = {SYMBOL_OF_BYTE[byte] for byte in missing}
    merges = [pair for pair in model["merges"] if not absent & {*"".join(pair)}]
    tokenizer = load(
        change(
            path,
            model__vocab={token: rank for token, rank in model["vocab"].items() if not absent & {*token}},
            model__merges=merges,
            added_tokens=[],
        )
    )
    assert is_compiled(tokenizer) == is_fast
    documents = [chr(point) * 2 for point in range(0x80, 0x110000, 97) if not 0xD800 <= point < 0xE000]
    assert encoded(tokenizer, documents) == expected(reference(path, "text"), documents)


def test_a_pattern_with_line_breaks_instead_of_escapes(make_json: Callable[..., Path], texts: list[str]) -> None:
    """As DeepSeek's file spells its own."""
    regex = split_patterns.LLAMA3.replace(r"\r", "\r").replace(r"\n", "\n")
    path = make_json(regex)
    tokenizer = load(path)
    assert is_compiled(tokenizer)
    documents = [*texts[:50], "a\r\n\n b \n  \n!\r\n"]
    assert encoded(tokenizer, documents) == expected(reference(path, "text"), documents)


@pytest.mark.parametrize("old_merges", [True, False])
def test_merges_as_text_and_as_pairs(make_json: Callable[..., Path], texts: list[str], old_merges: bool) -> None:
    path = make_json(split_patterns.GPT2)
    merges = json.loads(path.read_bytes())["model"]["merges"]
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]
    change(path, model__merges=[" ".join(pair) for pair in pairs] if old_merges else pairs)
    tokenizer = load(path)
    assert is_compiled(tokenizer)
    assert encoded(tokenizer, texts[:20]) == expected(reference(path, "text"), texts[:20])


def test_merges_of_tokens_that_are_not_there(make_json: Callable[..., Path]) -> None:
    path = change(make_json(split_patterns.GPT2), model__merges=[["a", "\u4e2d"]])
    with pytest.raises(BadData, match="merges '\u4e2d', which is not in its vocabulary"):
        load(path)


@pytest.mark.parametrize(
    "parts",
    [
        {"model__merges": [["a", "b", "c"]]},
        {"model__merges": ["a b c"]},
        {"model__vocab": ["a"]},
        {"added_tokens": [{"id": RANKS, "content": 5, "special": True}]},
        {"normalizer": "NFC"},
        {"pre_tokenizer": []},
    ],
)
def test_what_is_malformed_is_for_the_library_to_refuse(make_json: Callable[..., Path], parts: dict[str, Any]) -> None:
    with pytest.raises(BadData, match=r"tokenizer\.json: not a tokenizer"):
        load(change(make_json(split_patterns.GPT2), **parts))
