r"""The regular expressions that cut text into pieces, as tokenizers state them, and the list of compiled ones.

A pattern is recognised by its text alone. Several spellings of one pattern are known: possessive quantifiers change nothing if
the next term cannot match the characters given back, and `\s*[\r\n]` ends where `\s*[\r\n]+` does because `\s*` is greedy.
tiktoken's cl100k_base is not Llama 3's pattern: its `\s++$` keeps white space at the end of a text together.

Hugging Face's engine reads some patterns in another way than tiktoken's engine: `\p{N}{1,3}+` matches any number of digits.
TIKTOKEN_SPELLINGS has tiktoken's meaning of such a spelling as a pattern that both engines read alike.
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

QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
_GPT2_POSSESSIVE = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_UPPER_NOT_HAN, _LOWER_NOT_HAN = (f"{letters[:-1]}&&[^\\p{{Han}}]]" for letters in (_UPPER, _LOWER))
KIMI = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_NOT_HAN}*{_LOWER_NOT_HAN}+{_CONTRACTION}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER_NOT_HAN}+{_LOWER_NOT_HAN}*{_CONTRACTION}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

DEEPSEEK = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK_WORDS)
"""Three splits: the second cuts what the first leaves, and the third what both leave."""
STARCODER = (r"\p{N}", GPT2)
"""Numbers are taken apart first (a Digits pre-tokenizer)."""

SPELLINGS: dict[str | tuple[str, ...], int] = {
    GPT2: pattern_codes.GPT2,
    _GPT2_POSSESSIVE: pattern_codes.GPT2,
    LLAMA3: pattern_codes.LLAMA3,
    _LLAMA3_POSSESSIVE: pattern_codes.LLAMA3,
    QWEN2: pattern_codes.QWEN2,
    TEKKEN: pattern_codes.TEKKEN,
    O200K: pattern_codes.O200K,
    QWEN35: pattern_codes.QWEN35,
    CL100K: pattern_codes.CL100K,
    KIMI: pattern_codes.KIMI,
    DEEPSEEK: pattern_codes.DEEPSEEK,
    STARCODER: pattern_codes.STARCODER,
}
"""Every known spelling, and its number in compiled code. A tuple is a sequence of splits."""

TIKTOKEN_SPELLINGS = {CL100K.replace("{1,3}", "{1,3}+"): CL100K} | {
    spelling: spelling for spelling in SPELLINGS if isinstance(spelling, str)
}
"""The spellings of single patterns in tiktoken's engine, and a spelling that has the same meaning in both engines."""


def code(pattern: str | tuple[str, ...]) -> int:
    """Return the pre-tokenizer's number for one pattern or a sequence of patterns, or NOT_COMPILED."""
    return SPELLINGS.get(_escaped(pattern) if isinstance(pattern, str) else tuple(map(_escaped, pattern)), NOT_COMPILED)


def spelling(code: int) -> str | tuple[str, ...]:
    """Return the first spelling of a compiled pattern, or sequence of patterns."""
    return next(spelling for spelling, pattern_code in SPELLINGS.items() if pattern_code == code)


def _escaped(pattern: str) -> str:
    r"""The pattern with `\r` and `\n` for line breaks: DeepSeek's file has the characters themselves."""
    return pattern.replace("\r", r"\r").replace("\n", r"\n")
