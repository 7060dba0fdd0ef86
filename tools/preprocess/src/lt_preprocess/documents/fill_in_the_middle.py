"""Rearrange documents for infilling: prefix, suffix, middle instead of prefix, middle, suffix.

The rule is published by Bavarian et al. (arXiv 2207.14255) for whole documents and by the code of StarCoder and Megatron-LM. A
text is transformed with probability `rate`. Two places are drawn uniformly among its characters and cut it into three parts,
which may be empty and are tokenized one by one. Then, with probability `spm_rate`, the suffix comes first:

    PSM     PREFIX prefix SUFFIX suffix MIDDLE middle
    SPM     PREFIX SUFFIX suffix MIDDLE prefix middle

The numbers are drawn in Megatron-LM's order (a choice, two places, a choice) from a RandomState of the text's own, seeded with a
hash of text and seed: a text is transformed alike whatever the number of workers or shards, and after a resumed run.
"""

import dataclasses
import difflib
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from lt_preprocess.texts import Lengths, Texts
from lt_preprocess.tokenizers.base import Encoder, Ids, Tokenizer
from lt_shared.console import BadConfig

SEED_BYTES = 4
"""A RandomState takes seeds below 2**32."""


class Sentinels(NamedTuple):
    """The tokens before the three parts, by name."""

    prefix: str
    middle: str
    suffix: str


KNOWN_SENTINELS = (
    Sentinels("<fim_prefix>", "<fim_middle>", "<fim_suffix>"),
    Sentinels("<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    Sentinels("<fim-prefix>", "<fim-middle>", "<fim-suffix>"),
    Sentinels("\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>"),
    Sentinels("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581end\uff5c>", "<\uff5cfim\u2581hole\uff5c>"),
    Sentinels("<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"),
)
"""StarCoder's, Qwen's and CodeGemma's, SantaCoder's, Code Llama's, DeepSeek-Coder's, GLM's."""


@dataclasses.dataclass(frozen=True)
class FillInTheMiddle:
    """`tokens` are the sentinels' names and ids once `resolved` for a tokenizer."""

    rate: float
    spm_rate: float = 0.5
    seed: int = 0
    prefix_token: str | None = None
    middle_token: str | None = None
    suffix_token: str | None = None
    tokens: Mapping[str, int] | None = None

    def resolved(self, tokenizer: Tokenizer) -> "FillInTheMiddle":
        """Find the sentinels in a tokenizer. Raises BadConfig if it has no such tokens."""
        special = tokenizer.special_tokens
        requested = Sentinels(*(name or "" for name in (self.prefix_token, self.middle_token, self.suffix_token)))
        if not any(requested):
            requested = next((names for names in KNOWN_SENTINELS if all(name in special for name in names)), requested)
        for option, name in zip(Sentinels._fields, requested, strict=True):
            if not name:
                raise BadConfig(
                    "this tokenizer has none of the known tokens for --fim-rate",
                    f"name one of its special tokens with --fim-{option}-token",
                )
            if name not in special:
                similar = difflib.get_close_matches(name, special, 3) or list(special)[:3]
                raise BadConfig(
                    f"--fim-{option}-token {name}: not a special token of this tokenizer", f"for example {', '.join(similar)}"
                )
        if len(set(requested)) < len(requested):
            raise BadConfig(f"--fim-rate with the tokens {', '.join(requested)}: two of them are the same")
        return dataclasses.replace(
            self,
            prefix_token=requested.prefix,
            middle_token=requested.middle,
            suffix_token=requested.suffix,
            tokens={name: special[name] for name in requested},
        )

    def to_record(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def encode(self, texts: Texts, encoder: Encoder) -> tuple[Ids, Lengths]:
        """As `Encoder.encode`, with some of the texts transformed."""
        assert self.tokens is not None and self.prefix_token and self.middle_token and self.suffix_token
        prefix, middle, suffix = (
            np.array([self.tokens[name]], np.int32) for name in (self.prefix_token, self.middle_token, self.suffix_token)
        )
        # Making a RandomState asks the system for entropy, which takes longer than all else; seeding one again does not.
        random = np.random.RandomState(0)
        parts: list[bytes] = []
        suffix_is_first: list[bool | None] = []
        for text in texts.to_list():
            arrangement = self._arrangement(text, random)
            suffix_is_first.append(None if arrangement is None else arrangement[1])
            parts += [text] if arrangement is None else arrangement[0]
        ids, lengths = encoder.encode(Texts.from_list(parts))
        ends = np.cumsum(lengths)
        tokens_of_parts = iter(np.split(ids, ends[:-1]) if len(ends) else [])
        rearranged: list[Ids] = []
        text_lengths = np.empty(len(suffix_is_first), np.int64)
        for number, is_spm in enumerate(suffix_is_first):
            pieces = [next(tokens_of_parts)]
            if is_spm is not None:
                before, between, after = pieces[0], next(tokens_of_parts), next(tokens_of_parts)
                pieces = (
                    [prefix, suffix, after, middle, before, between]
                    if is_spm
                    else [prefix, before, suffix, after, middle, between]
                )
            text_lengths[number] = sum(map(len, pieces))
            rearranged += pieces
        return np.concatenate([np.zeros(0, np.int32), *rearranged]), text_lengths

    def _arrangement(self, text: bytes, random: "np.random.RandomState") -> tuple[list[bytes], bool] | None:
        """Prefix, middle and suffix of a text, and whether the suffix comes first; None for an unchanged text. Seeds `random`."""
        key = self.seed.to_bytes(8, "little")
        digest = hashlib.blake2b(text, digest_size=SEED_BYTES, key=key).digest()
        random.seed(int.from_bytes(digest, "little"))
        if not random.binomial(1, self.rate):
            return None
        characters = text.decode()
        first, second = sorted(random.randint(low=0, high=len(characters) + 1, size=2).tolist())
        parts = [characters[:first], characters[first:second], characters[second:]]
        return [part.encode() for part in parts], bool(random.binomial(1, self.spm_rate))
