"""The demo corpus and its tokenizer: what is committed is clean, is what the scripts and the README say, and encodes
the same under tiktoken and HF tokenizers."""

import json
import math
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
import tiktoken
import zstandard
from tokenizers import ByteLevelBPETokenizer

DEMO = Path(__file__).parent
README = (DEMO / "README.md").read_text(encoding="utf-8")
VOCAB = DEMO / "tokenizer/vocab.json"
MERGES = DEMO / "tokenizer/merges.txt"
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
BYTE_OF_SYMBOL = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(OTHERS)}


@pytest.fixture(scope="module")
def documents() -> list[dict[str, str]]:
    with zstandard.open(DEMO / "corpus.jsonl.zst", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def token_ids(documents: list[dict[str, str]]) -> list[list[int]]:
    tokenizer = ByteLevelBPETokenizer(str(VOCAB), str(MERGES))
    return [encoding.ids for encoding in tokenizer.encode_batch([document["text"] for document in documents])]


def test_documents_are_whole_and_unique(documents: list[dict[str, str]]) -> None:
    assert all(set(document) == {"id", "source", "text"} for document in documents)
    assert all(document["text"].strip() for document in documents)
    assert len({document["text"] for document in documents}) == len(documents)
    assert len({document["id"] for document in documents}) == len(documents)


def test_text_is_clean(documents: list[dict[str, str]]) -> None:
    leftovers = re.compile("\ufffd|\u00ad|\u00a0|[\u2500-\u257f]|00-?database")
    for document in documents:
        assert not leftovers.search(document["text"]), document["id"]
        categories = {unicodedata.category(character) for character in document["text"].replace("\n", "")}
        assert not categories & {"Cc", "Cf", "Co", "Cs", "Cn"}, document["id"]


def test_every_contiguous_tenth_holds_every_source(documents: list[dict[str, str]]) -> None:
    sources = {document["source"] for document in documents}
    tenth = len(documents) // 10
    for start in range(0, tenth * 10, tenth):
        assert {document["source"] for document in documents[start : start + tenth]} == sources


def test_readme_names_the_licence_of_every_source(documents: list[dict[str, str]]) -> None:
    for source in {document["source"] for document in documents}:
        section = README.split(f"### {source}\n", 1)[1].split("\n#", 1)[0]
        assert "public domain" in section.lower()


def test_readme_gives_the_size_and_entropy(documents: list[dict[str, str]], token_ids: list[list[int]]) -> None:
    text_bytes = sum(len(document["text"].encode()) for document in documents)
    counts = Counter(token for ids in token_ids for token in ids)
    counts[2047] += len(documents)
    tokens = counts.total()
    entropy_nats = -sum(count / tokens * math.log(count / tokens) for count in counts.values())
    assert f"| documents | {len(documents):,} |" in README
    assert f"| text, bytes of UTF-8 | {text_bytes:,} |" in README
    assert f"| tokens, one `<\\|endoftext\\|>` a document included | {tokens:,} |" in README
    assert f"| unigram entropy, nats per token | {entropy_nats:.4f} |" in README


def test_committed_tokenizer_is_what_the_script_trains(tmp_path: Path) -> None:
    subprocess.run([sys.executable, DEMO / "train_tokenizer.py", tmp_path], check=True)
    assert (tmp_path / "merges.txt").read_bytes() == MERGES.read_bytes()
    assert (tmp_path / "vocab.json").read_bytes() == VOCAB.read_bytes()


def test_tokenizer_files_are_numbered_as_gpt2_numbers_its_own() -> None:
    header, *merges = MERGES.read_text(encoding="utf-8").splitlines()
    expected = [*BYTE_OF_SYMBOL, *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    assert header == "#version: 0.2"
    assert json.loads(VOCAB.read_text(encoding="utf-8")) == {token: number for number, token in enumerate(expected)}
    assert len(expected) == 2048


def test_tiktoken_encodes_the_corpus_to_the_same_ids(documents: list[dict[str, str]], token_ids: list[list[int]]) -> None:
    vocab = json.loads(VOCAB.read_text(encoding="utf-8"))
    end_of_text = vocab.pop("<|endoftext|>")
    ranks = {bytes(BYTE_OF_SYMBOL[symbol] for symbol in token): number for token, number in vocab.items()}
    encoding = tiktoken.Encoding(
        "demo", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": end_of_text}
    )
    texts = [document["text"] for document in documents]
    assert encoding.encode_ordinary_batch(texts) == token_ids
    assert [encoding.decode(ids) for ids in token_ids] == texts
