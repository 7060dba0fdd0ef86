"""Texts are rearranged for infilling by the published rule, each by random numbers of its own."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer, Tokenizer

from lt_preprocess.documents.fill_in_the_middle import FillInTheMiddle
from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import base, loading
from lt_shared.console import BadConfig
from lt_shared.tokenizers import tokenizer_files

NAMES = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>")


@pytest.fixture(scope="module")
def infilling(tmp_path_factory: pytest.TempPathFactory, demo_tokenizer: Path) -> tuple[base.Tokenizer, Tokenizer]:
    """The tokenizer of the demo with StarCoder's tokens, and the library's."""
    library = ByteLevelBPETokenizer(str(demo_tokenizer / "vocab.json"), str(demo_tokenizer / "merges.txt"))
    library.add_special_tokens(["<|endoftext|>", *NAMES, "<|fim_prefix|>"])
    path = tmp_path_factory.mktemp("fim") / "tokenizer.json"
    library.save(str(path))
    return loading.load(tokenizer_files.find(path)), Tokenizer.from_file(str(path))


def encode(fim: FillInTheMiddle, tokenizer: base.Tokenizer, texts: list[str]) -> list[list[int]]:
    ids, lengths = fim.resolved(tokenizer).encode(Texts.from_list([text.encode() for text in texts]), tokenizer.new_encoder())
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def published(text: str, fim: FillInTheMiddle, library: Tokenizer) -> list[int]:
    """The rule of Megatron-LM's GPTFIMDataset for one text: a choice, two characters, a choice; PSM, or SPM's second variant."""
    seed = hashlib.blake2b(text.encode(), digest_size=4, key=fim.seed.to_bytes(8, "little")).digest()
    random = np.random.RandomState(int.from_bytes(seed, "little"))

    def ids(part: str) -> list[int]:
        return list(library.encode(part, add_special_tokens=False).ids)

    if not random.binomial(1, fim.rate):
        return ids(text)
    first, second = sorted(random.randint(0, len(text) + 1, 2))
    prefix, middle, suffix = ids(text[:first]), ids(text[first:second]), ids(text[second:])
    pre, mid, suf = (library.token_to_id(name) for name in NAMES)
    if random.binomial(1, fim.spm_rate):
        return [pre, suf, *suffix, mid, *prefix, *middle]
    return [pre, *prefix, suf, *suffix, mid, *middle]


@pytest.mark.parametrize(("rate", "spm_rate", "seed"), [(0.5, 0.5, 0), (1.0, 0.0, 7), (1.0, 1.0, 2**64 - 1), (0.25, 0.5, 1)])
def test_texts_are_rearranged_by_the_published_rule(
    infilling: tuple[base.Tokenizer, Tokenizer], texts: list[str], rate: float, spm_rate: float, seed: int
) -> None:
    tokenizer, library = infilling
    fim = FillInTheMiddle(rate, spm_rate, seed)
    some = [*texts[:300], "a", "\u00e9", "\u65e5\u672c\u8a9e text", "\n"]
    assert encode(fim, tokenizer, some) == [published(text, fim, library) for text in some]


def test_by_hand(infilling: tuple[base.Tokenizer, Tokenizer]) -> None:
    """All cuts of a text of two characters, and both orders, come up; nothing else does."""
    tokenizer, library = infilling
    pre, mid, suf = (library.token_to_id(name) for name in NAMES)
    a, b = (library.token_to_id(letter) for letter in "ab")
    both = library.encode("ab", add_special_tokens=False).ids
    pieces = {"": [], "a": [a], "b": [b], "ab": both}
    expected = set()
    for prefix, middle, suffix in [
        ("", "", "ab"),
        ("", "a", "b"),
        ("", "ab", ""),
        ("a", "", "b"),
        ("a", "b", ""),
        ("ab", "", ""),
    ]:
        p, m, s = pieces[prefix], pieces[middle], pieces[suffix]
        expected |= {(pre, *p, suf, *s, mid, *m), (pre, suf, *s, mid, *p, *m)}
    assert {tuple(encode(FillInTheMiddle(1.0, 0.5, seed), tokenizer, ["ab"])[0]) for seed in range(300)} == expected


def test_rates(infilling: tuple[base.Tokenizer, Tokenizer], texts: list[str]) -> None:
    """Among 3,292 texts a share of 0.3 is within five standard deviations, 0.04."""
    tokenizer, library = infilling
    pre, _, suf = (library.token_to_id(name) for name in NAMES)
    made = encode(FillInTheMiddle(0.3, 0.8), tokenizer, texts)
    rearranged = [ids for ids in made if ids[0] == pre]
    assert len(rearranged) / len(made) == pytest.approx(0.3, abs=0.04)
    assert sum(ids[1] == suf for ids in rearranged) / len(rearranged) == pytest.approx(0.8, abs=0.07)
    assert encode(FillInTheMiddle(0.0), tokenizer, texts[:9]) == [library.encode(text).ids for text in texts[:9]]


def test_a_text_is_rearranged_alike_wherever_it_stands(infilling: tuple[base.Tokenizer, Tokenizer], texts: list[str]) -> None:
    fim = FillInTheMiddle(0.5)
    together = encode(fim, infilling[0], texts[:60])
    assert [encode(fim, infilling[0], [text])[0] for text in texts[:60]] == together
    assert encode(FillInTheMiddle(0.5, seed=1), infilling[0], texts[:60]) != together


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"prefix_token": "<fim_prefx>"}, "--fim-prefix-token <fim_prefx>: not a special token of this tokenizer"),
        ({"suffix_token": "<fim_prefix>"}, "two of them are the same"),
        ({"middle_token": "a"}, "--fim-middle-token a: not a special token"),
    ],
)
def test_tokens_that_the_tokenizer_lacks(
    infilling: tuple[base.Tokenizer, Tokenizer], tokens: dict[str, Any], message: str
) -> None:
    names = dict(zip(("prefix_token", "middle_token", "suffix_token"), NAMES, strict=True))
    with pytest.raises(BadConfig, match=message):
        FillInTheMiddle(0.5, **(names | tokens)).resolved(infilling[0])


def test_tokens_by_name(infilling: tuple[base.Tokenizer, Tokenizer], demo_tokenizer: Path) -> None:
    named = FillInTheMiddle(0.5, prefix_token="<|fim_prefix|>", middle_token=NAMES[1], suffix_token=NAMES[2])
    assert list(named.resolved(infilling[0]).tokens or ()) == ["<|fim_prefix|>", *NAMES[1:]]
    assert list(FillInTheMiddle(0.5).resolved(infilling[0]).tokens or ()) == list(NAMES)
    with pytest.raises(BadConfig, match="none of the known tokens for --fim-rate"):
        FillInTheMiddle(0.5).resolved(loading.load(tokenizer_files.find(demo_tokenizer)))
