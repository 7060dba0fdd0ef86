r"""The regular expressions that cut text into pieces, as tokenizers state them, and which of them are compiled.

A pattern is recognised by its text alone. Several spellings of one pattern are known: possessive quantifiers change nothing where
what follows cannot match the characters given back, and `\s*[\r\n]` ends where `\s*[\r\n]+` does because `\s*` is greedy.
tiktoken's own cl100k_base is not among them: it begins with `\s++$`, which keeps white space at the end of a text together.
"""

from lt_preprocess.tokenizers import pattern_codes

NOT_COMPILED = -1

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_AFTER_WORDS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_AFTER_WORDS}"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}"
    rf"|\p{{N}}{{1,3}}|{_AFTER_WORDS}"
)

SPELLINGS = {
    GPT2: pattern_codes.GPT2,
    LLAMA3: pattern_codes.LLAMA3,
    _LLAMA3_POSSESSIVE: pattern_codes.LLAMA3,
    QWEN2: pattern_codes.QWEN2,
    TEKKEN: pattern_codes.TEKKEN,
    O200K: pattern_codes.O200K,
}
"""Every known spelling, and its number in compiled code."""


def code(pattern: str) -> int:
    """The pre-tokenizer's number for a pattern, or NOT_COMPILED."""
    return SPELLINGS.get(pattern, NOT_COMPILED)


def find_in(source: str) -> str | None:
    """The one known pattern that stands in the source code of a tokenizer, or None."""
    found = [pattern for pattern in SPELLINGS if pattern in source]
    return found[0] if len(found) == 1 else None
