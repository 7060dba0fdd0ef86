r"""Cut text by a split pattern without a tokenizers library: the pattern is translated for Python's regular expressions.

Properties such as `\p{L}` become the ranges of `unicode_ranges`, so that text is cut alike under every version of Python. What
Python would read in another way than tiktoken's engine is not translated; tokenizers before 1.0 has an engine for these patterns.
"""

import functools
import re
import warnings
from collections.abc import Callable, Iterable, Iterator

from lt_preprocess.tokenizers.bpe import unicode_ranges
from lt_shared.console import Unavailable

Cut = Callable[[str], Iterable[str]]

_LAST_POINT = 0x10FFFF
# Escapes that mean the same in all engines, besides escaped punctuation.
_PLAIN_ESCAPES = frozenset("rntf")
_GROUPS = ("(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>")
_PROPERTY = re.compile(r"\\p\{(\w+)\}")
_INTERSECTION = re.compile(r"&&\[\^((?:\\.|\{\w+\}|[^\[\]\\])*)\]$")

Ranges = tuple[tuple[int, int], ...]


class _Untranslatable(Exception):
    """Python would read this part of a pattern in another way, or not at all."""


def splitter(patterns: Iterable[str]) -> Cut:
    """Return what cuts a text by the patterns, one after the other; a text between matches is a piece, too.

    Raises Unavailable for a pattern that only an older tokenizers package can cut by.
    """
    cuts = [_cut_by(pattern) for pattern in patterns]

    def cut(text: str) -> Iterable[str]:
        pieces: Iterable[str] = [text]
        for cut_piece in cuts:
            pieces = [part for piece in pieces for part in cut_piece(piece)]
        return pieces

    return cuts[0] if len(cuts) == 1 else cut


def _cut_by(pattern: str) -> Cut:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)
            compiled = re.compile(translate(pattern))
    except (_Untranslatable, re.error, FutureWarning) as problem:
        return _library_cut(pattern, str(problem))

    def cut(text: str) -> Iterator[str]:
        end = 0
        for match in compiled.finditer(text):
            start = match.start()
            if start > end:
                yield text[end:start]
            if match.end() > start:
                yield match[0]
            end = match.end()
        if end < len(text):
            yield text[end:]

    return cut


def _library_cut(pattern: str, problem: str) -> Cut:
    import tokenizers

    from lt_preprocess.tokenizers import tokenizers_package

    if not tokenizers_package.has_pattern_engine():
        raise Unavailable(
            f"tokenizers {tokenizers.__version__} has no engine for the split pattern {pattern!r:.60} ({problem})",
            "pip install 'tokenizers<1'",
        )
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
    return lambda text: [piece for piece, _ in split.pre_tokenize_str(text)]


def translate(pattern: str) -> str:
    """Return the pattern for Python's `re`."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern[at] == "[":
            end = _class_end(pattern, at)
            parts.append(_character_class(pattern[at + 1 : end - 1]))
        elif pattern[at] == "\\":
            end = _escape_end(pattern, at)
            parts.append(_outside_class(pattern[at:end]))
        elif pattern.startswith("(?", at):
            group = next((group for group in _GROUPS if pattern.startswith(group, at)), None)
            if group is None:
                raise _Untranslatable(f"the group {pattern[at : at + 4]}")
            end = at + len(group)
            parts.append(group)
        else:
            end = at + 1
            # The end of the text, in Python also before a line break at the end.
            parts.append({"$": r"\Z", "^": r"\A"}.get(pattern[at], pattern[at]))
        at = end
    return "".join(parts)


def _escape_end(pattern: str, at: int) -> int:
    match = _PROPERTY.match(pattern, at)
    return match.end() if match else at + 2


def _class_end(pattern: str, start: int) -> int:
    """The end of the character class that begins at `start`, classes inside it included."""
    depth, at = 0, start
    while at < len(pattern):
        if pattern[at] == "\\":
            at = _escape_end(pattern, at)
            continue
        depth += (pattern[at] == "[") - (pattern[at] == "]")
        at += 1
        if depth == 0:
            return at
    raise _Untranslatable("a character class without an end")


def _outside_class(escape: str) -> str:
    if escape in (r"\s", r"\S"):
        sign = "^" if escape == r"\S" else ""
        return f"[{sign}{_written(_named(['s']))}]"
    if match := _PROPERTY.fullmatch(escape):
        return f"[{_written(_named([match[1]]))}]"
    return _literal(escape)


def _literal(escape: str) -> str:
    if len(escape) != 2 or (escape[1].isalnum() and escape[1] not in _PLAIN_ESCAPES):
        raise _Untranslatable(f"the escape {escape}")
    return escape


def _character_class(content: str) -> str:
    r"""Translate the content of brackets. `A&&[^B]` becomes a look at B that must fail, then A."""
    match = _INTERSECTION.search(content)
    if match:
        return f"(?:(?!{_character_class(match[1])}){_character_class(content[: match.start()])})"
    sign = "^" if content.startswith("^") else ""
    names: list[str] = []
    literals: list[str] = []
    at = len(sign)
    while at < len(content):
        if content[at] == "[":
            raise _Untranslatable("a character class inside another")
        end = at + 1
        if content[at] == "\\":
            end = _escape_end(content, at)
            escape = content[at:end]
            property_name = _PROPERTY.fullmatch(escape)
            if property_name or escape == r"\s":
                names.append(property_name[1] if property_name else "s")
            else:
                literals.append(_literal(escape))
        else:
            literals.append(content[at])
        at = end
    return f"[{sign}{''.join(literals)}{_written(_named(names))}]"


def _named(names: Iterable[str]) -> Ranges:
    """The code points of properties. Case and kind of letters are known in pairs only: title with upper case, Lm with Lo."""
    remaining = set(names)
    ranges: list[tuple[int, int]] = []
    for property_names, table in _tables():
        if property_names <= remaining:
            remaining -= property_names
            ranges += table
    if remaining:
        raise _Untranslatable(f"the property {', '.join(sorted(remaining))}")
    return tuple(ranges)


@functools.cache
def _tables() -> list[tuple[set[str], Ranges]]:
    from lt_preprocess.tokenizers.bpe import character_classes

    classes = character_classes.table()
    caseless = classes == character_classes.LETTER
    edges = [int(edge) for edge in (caseless[1:] != caseless[:-1]).nonzero()[0] + 1]
    spaces = _ranges(unicode_ranges.SPACES)
    return [
        ({"L"}, _ranges(unicode_ranges.LETTERS)),
        ({"Lu", "Lt"}, _ranges(unicode_ranges.UPPER_CASE)),
        ({"Ll"}, _ranges(unicode_ranges.LOWER_CASE)),
        ({"Lm", "Lo"}, tuple((first, end - 1) for first, end in zip(edges[::2], edges[1::2], strict=True))),
        ({"M"}, _ranges(unicode_ranges.MARKS)),
        ({"N"}, _ranges(unicode_ranges.NUMBERS)),
        ({"P", "S"}, _ranges(unicode_ranges.PUNCTUATION_AND_SYMBOLS)),
        ({"Han"}, _ranges(unicode_ranges.HAN)),
        ({"s"}, spaces),
    ]


def _ranges(text: str) -> Ranges:
    bounds = [part.split("-") for part in text.split()]
    return tuple((int(bound[0], 16), int(bound[-1], 16)) for bound in bounds)


def _written(ranges: Ranges) -> str:
    """The ranges as they stand in a character class."""
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
