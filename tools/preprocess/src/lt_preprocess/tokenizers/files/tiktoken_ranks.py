"""Files that list ranks: Tekken's, and tiktoken's lines of a base64 token and its rank, which is its id.

A tiktoken file does not say how text is cut into pieces, nor what the special tokens are called. Llama 3, Llama 4 and Qwen are
known by their number of tokens. Of another model, the Python code beside the file must hold a pattern that is known here, and
`tokenizer_config.json` the special tokens (`added_tokens_decoder`).
"""

import binascii
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from lt_preprocess.tokenizers import split_patterns, vocabulary
from lt_preprocess.tokenizers.files import json_files
from lt_preprocess.tokenizers.vocabulary import AddedToken, Vocabulary
from lt_shared.console import BadData
from lt_shared.tokenizer_files import TokenizerFiles
from lt_shared.tokenizers import llama3, tekken


def llama4_special_tokens() -> list[str]:
    """The 2,048 tokens after the ranks."""
    basic = ["begin_of_text", "end_of_text", "fim_prefix", "fim_middle", "fim_suffix"]
    post_train = [
        *("header_start", "header_end", "eom", "eot", "step"),
        *(f"text_post_train_reserved_special_token_{number}" for number in range(6)),
        *("python_start", "python_end", "finetune_right_pad"),
        *(f"text_post_train_reserved_special_token_{number}" for number in range(8, 69)),
    ]
    vision = [f"vision_reserved_special_token_{number}" for number in range(1048)]
    for name, index in (
        *(("image_start", 0), ("image_end", 1), ("tile_x_separator", 4)),
        *(("tile_y_separator", 5), ("image", 10), ("patch", 12)),
    ):
        vision.insert(index, name)
    reasoning = [f"reasoning_reserved_special_token_{number}" for number in range(8)]
    reasoning += ["reasoning_thinking_start", "reasoning_thinking_end"]
    names = [*basic, *post_train, *vision, *reasoning]
    names += [f"reserved_special_token_{number}" for number in range(2048 - len(names))]
    return [f"<|{name}|>" for name in names]


def qwen_special_tokens() -> list[str]:
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]


class _Model(NamedTuple):
    regex: str
    special_tokens: Callable[[], list[str]]
    end_of_document: str
    is_nfc: bool = False


_MODELS = {
    128_000: _Model(split_patterns.LLAMA3, llama3.special_tokens, "<|end_of_text|>"),
    151_643: _Model(split_patterns.QWEN2, qwen_special_tokens, "<|endoftext|>", is_nfc=True),
    200_000: _Model(split_patterns.O200K, llama4_special_tokens, "<|end_of_text|>"),
}


def read(files: TokenizerFiles) -> Vocabulary:
    """Raises BadData for a malformed file and for one of an unknown model."""
    path, *code = files.files
    ranks = read_ranks(path)
    model = _MODELS.get(len(ranks))
    if model is not None and max(ranks.values()) == len(ranks) - 1:
        numbered = enumerate(model.special_tokens(), len(ranks))
        added = [AddedToken(content, number, is_special=True) for number, content in numbered]
        return _with_added_tokens(ranks, added, model.regex, model.end_of_document, model.is_nfc)
    return _read_unknown(files, ranks, code)


def _read_unknown(files: TokenizerFiles, ranks: dict[bytes, int], code: Sequence[Path]) -> Vocabulary:
    sources = [source.read_text(encoding="utf-8", errors="replace") for source in code]
    regex = split_patterns.find_in("\n".join(sources))
    if regex is None:
        raise BadData(
            f"{files.files[0]}: a tiktoken file of {len(ranks):,} entries; only those of Llama 3 (128,000), Llama 4 (200,000) "
            "and Qwen (151,643) are known, and the file does not say how text is cut",
            "use the tokenizer.json of that model",
        )
    decoder = json_files.configuration(files.companions).get("added_tokens_decoder")
    if not isinstance(decoder, dict) or not decoder:
        raise BadData(
            f"{files.files[0]}: no tokenizer_config.json beside it lists the special tokens (added_tokens_decoder)",
            "use the tokenizer.json of that model",
        )
    try:
        added = [AddedToken(str(token["content"]), int(number), bool(token["special"])) for number, token in decoder.items()]
    except (ValueError, TypeError, KeyError):
        raise BadData(f"{files.directory / 'tokenizer_config.json'}: added_tokens_decoder is malformed") from None
    names = {token.content for token in added}
    eod = json_files.eos_token(files.companions)
    eod = eod or next((name for name in vocabulary.END_OF_DOCUMENT_NAMES if name in names), None)
    is_nfc = any("normalize(" in source and "NFC" in source for source in sources)
    return _with_added_tokens(ranks, added, regex, eod, is_nfc)


def read_tekken(files: TokenizerFiles) -> Vocabulary:
    """The vocabulary of a `tekken.json`, whose ranks mean the same. Raises BadData when it is malformed."""
    found = tekken.read(files.files[0])
    added = [AddedToken(content, number, is_special=True) for number, content in enumerate(found.special_tokens)]
    return _with_added_tokens(found.ids, added, found.pattern, tekken.END_OF_DOCUMENT)


def _with_added_tokens(
    ranks: dict[bytes, int], added: Sequence[AddedToken], regex: str, end_of_document: str | None, is_nfc: bool = False
) -> Vocabulary:
    """A vocabulary of ranks and of added tokens before, among or after them."""
    numbers = {token.content: token.id for token in added}
    plain = vocabulary.from_ranks(ranks, split_patterns.code(regex), 0, numbers.get(end_of_document or ""))
    return dataclasses.replace(
        plain,
        vocab_size=max(plain.vocab_size, *(number + 1 for number in numbers.values())),
        regex=regex,
        added_tokens=tuple(added),
        is_nfc=is_nfc,
    )


def read_ranks(path: Path) -> dict[bytes, int]:
    """The tokens of a tiktoken file and their ranks. Raises BadData for a malformed line or a byte without a token."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[binascii.a2b_base64(token, strict_mode=True)] = int(rank)
        except ValueError:  # binascii.Error is one
            raise BadData(f"{path}, line {number}: {line[:40]!r} is not a base64 token and a rank") from None
    _check_ranks(path, ranks)
    return ranks


def _check_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    """Raises BadData unless every byte has a token and every token a rank of its own, of 31 bits."""
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        raise BadData(f"{path}: no token for byte 0x{missing[0]:02X} ({len(missing)} bytes have none)", "is the file truncated?")
    outside = next((rank for rank in ranks.values() if not 0 <= rank < 2**31), None)
    if outside is not None:
        raise BadData(f"{path}: rank {outside} is not from 0 to 2,147,483,647")
    if len(set(ranks.values())) < len(ranks):
        raise BadData(f"{path}: several tokens share a rank")
