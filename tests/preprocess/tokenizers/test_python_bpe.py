"""BPE without compiled code: tiktoken's ids for any ranks and patterns, in no quadratic time."""

import dataclasses
import random
import time

import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_preprocess.texts import Texts
from lt_preprocess.tokenizers import split_patterns, vocabulary
from lt_preprocess.tokenizers.python_bpe import UncompiledEncoder

BYTES = [bytes([byte]) for byte in range(256)]


def encoders(ranks: dict[bytes, int], regex: str) -> tuple[UncompiledEncoder, tiktoken.Encoding]:
    read = dataclasses.replace(vocabulary.from_ranks(ranks, split_patterns.NOT_COMPILED, 0, None), regex=regex)
    return UncompiledEncoder(read), tiktoken.Encoding("random", pat_str=regex, mergeable_ranks=ranks, special_tokens={})


@settings(max_examples=80, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.lists(st.lists(st.sampled_from(b"ab '\n1"), min_size=2, max_size=6).map(bytes), unique=True, max_size=40),
    st.lists(st.text(st.sampled_from("ab '\n1!S"), max_size=100), max_size=3),
)
def test_random_ranks(shuffler: random.Random, tokens: list[bytes], texts: list[str]) -> None:
    ranked = BYTES.copy()
    shuffler.shuffle(ranked)
    encoder, reference = encoders({token: rank for rank, token in enumerate([*ranked, *tokens])}, r"[ab]+|\s?\S+|\s+")
    ids, lengths = encoder.encode(Texts.from_list([text.encode() for text in texts]))
    expected = [reference.encode_ordinary(text) for text in texts]
    assert lengths.tolist() == list(map(len, expected))
    assert ids.tolist() == [number for text in expected for number in text]


def test_a_very_long_word_takes_no_quadratic_time() -> None:
    encoder, _ = encoders({token: rank for rank, token in enumerate([*BYTES, b"aa", b"aaaa"])}, r"\S+|\s+")
    start = time.process_time()
    ids, _ = encoder.encode(Texts.from_list([b"a" * 100_000]))
    assert len(ids) == 25_000
    assert time.process_time() - start < 5
