"""The content of a tokenizer.json: tokens and ids as the tokenizers package counts them, and the parts that lt-convert writes.

No package reads or writes it here: tokenizers 1.0 offers neither parts nor a way to save. `content` is the parsed file.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lt_shared.console import BadData
from lt_shared.files import strict_json
from lt_shared.tokenizers.configuration import FLAGS

Part = dict[str, Any]


def added_token(content: str, normalized: bool = True, special: bool = False) -> Part:
    """An added token without an id, as in the `added_tokens` of a tokenizer.json."""
    return dict.fromkeys(FLAGS, False) | {"content": content, "normalized": normalized, "special": special}


@dataclasses.dataclass
class TokenizerJson:
    """A tokenizer. `added` has its added tokens by id; `content` is up to date after `add_tokens`."""

    content: Part
    added: dict[int, Part] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        vocab = self.content["model"]["vocab"]
        # The vocabulary of a Unigram model lists its tokens with their scores.
        self._ids = dict(vocab) if isinstance(vocab, Mapping) else {entry[0]: number for number, entry in enumerate(vocab)}
        self._model_size = len(self._ids)
        listed, self.content["added_tokens"] = self.content.get("added_tokens") or [], []
        self.add_tokens(listed)

    def ids(self) -> dict[str, int]:
        """Every token with its id, added tokens included."""
        return dict(self._ids)

    def token_to_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def add_tokens(self, tokens: Iterable[Mapping[str, Any]]) -> None:
        """Add tokens as tokenizers 0.22 and newer do: one of the vocabulary keeps its id, another gets the next id.

        The next id follows the number of tokens in the vocabulary, not its highest id, and the ids that added tokens had before.
        """
        following = max([self._model_size, *(number + 1 for number in self.added)])
        for token in tokens:
            text = token["content"]
            if not text:
                continue
            number = self._ids.setdefault(text, following)
            following += number == following
            self.added[number] = {"id": number, "content": text, **{flag: bool(token.get(flag)) for flag in FLAGS}}
        self.content["added_tokens"] = [token for _, token in sorted(self.added.items())]

    def to_bytes(self) -> bytes:
        """The file."""
        return json.dumps(self.content, indent=2, ensure_ascii=False).encode()


def read(path: Path) -> TokenizerJson:
    """Raises BadData for a file that is no tokenizer."""
    try:
        return parse(strict_json.loads(path.read_bytes()))
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise BadData(f"{path}: not a tokenizer: {_explained(error)}") from None


def parse(content: Any) -> TokenizerJson:
    """Raises ValueError, or an error of a missing or malformed part, for content that is no tokenizer."""
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise ValueError("it has no model")
    tokenizer = TokenizerJson(dict(content))
    for text, number in tokenizer.ids().items():
        if not isinstance(text, str) or type(number) is not int or number < 0:
            raise ValueError(f"its vocabulary gives {text!r:.40} the id {number!r:.40}")
    return tokenizer


def _explained(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def tokenizer(
    model: Part,
    *,
    normalizer: Part | None = None,
    pre_tokenizer: Part | None = None,
    post_processor: Part | None = None,
    decoder: Part | None = None,
) -> TokenizerJson:
    """A tokenizer of parts; the keys are in the order of the package's own files."""
    return TokenizerJson(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor,
            "decoder": decoder,
            "model": model,
        }
    )


def bpe(
    ids: Mapping[str, int],
    merges: Sequence[Sequence[str]],
    *,
    unknown: str | None = None,
    fuses_unknown: bool = False,
    byte_fallback: bool = False,
    ignores_merges: bool = False,
) -> Part:
    """A model of byte pair encoding. Raises ValueError for merges whose tokens have no id."""
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in ids:
                raise ValueError(f"the merge of {left!r:.40} and {right!r:.40} needs {token!r:.40}, which has no id")
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fuses_unknown,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignores_merges,
        "vocab": dict(sorted(ids.items(), key=lambda item: item[1])),
        "merges": [list(pair) for pair in merges],
    }


def sequence(kind: str, steps: list[Part]) -> Part:
    """Steps in a row; `kind` is "normalizers", "pretokenizers" or "decoders"."""
    return {"type": "Sequence", kind: steps}


def byte_level(add_prefix_space: bool = True, trim_offsets: bool = True, use_regex: bool = True) -> Part:
    """Bytes as symbols: a pre-tokenizer, a decoder or a post-processor."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": trim_offsets,
        "use_regex": use_regex,
    }


def split(regex: str) -> Part:
    """Cut text into the matches of a pattern and the texts between them."""
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def replace(pattern: str, content: str, is_regex: bool = False) -> Part:
    """Replace a string or the matches of a pattern: a normalizer or a decoder."""
    return {"type": "Replace", "pattern": {"Regex" if is_regex else "String": pattern}, "content": content}


def template(begin: tuple[str, int] | None = None, end: tuple[str, int] | None = None) -> Part:
    """Put the token `begin` before each text and `end` after it; both are a token and its id."""

    def special(token: tuple[str, int] | None, type_id: int) -> list[Part]:
        return [] if token is None else [{"SpecialToken": {"id": token[0], "type_id": type_id}}]

    def text(name: str, type_id: int) -> list[Part]:
        return [*special(begin, type_id), {"Sequence": {"id": name, "type_id": type_id}}, *special(end, type_id)]

    ids = dict(sorted(token for token in (begin, end) if token is not None))
    return {
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": [*text("A", 0), *text("B", 1)],
        "special_tokens": {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in ids.items()},
    }
