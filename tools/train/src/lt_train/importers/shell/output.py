"""Compute the output of a command substitution for `echo`, `expr`, `seq`, `cat` of a here-document, and `echo ... | bc`."""

import re
from collections.abc import Sequence
from typing import Protocol

from lt_train.importers.shell import arithmetic
from lt_train.importers.shell.nodes import HereDocument, Node, Pipeline, Simple
from lt_train.importers.shell.syntax import parse
from lt_train.importers.shell.unknown import is_known

OF_EXPR = re.compile(r"-?\d+|[-+*/%()]")
OF_BC = re.compile(r"[-+*/()\d\s]+")
LONGEST_SEQUENCE = 64


class Expanding(Protocol):
    """The methods of Expansion that this module calls."""

    def words(self, sources: Sequence[str]) -> list[str]: ...

    def quoted(self, source: str) -> str: ...


def command_output(text: str, expansion: Expanding) -> str | None:
    """Return the output of the command `text`, or None if only a run would show it."""
    try:
        nodes = parse(text)
    except ValueError:
        return None
    return _node_output(nodes[0], expansion) if len(nodes) == 1 else None


def _node_output(node: Node, expansion: Expanding) -> str | None:
    if isinstance(node, Pipeline) and len(node.parts) == 2 and not node.is_negated:
        first, second = node.parts
        if (
            isinstance(second, Simple)
            and second.words[:1] == ["bc"]
            and isinstance(first, Simple)
            and first.words[:1] == ["echo"]
        ):
            return _calculated(_node_output(first, expansion), second.words[1:])
    if not isinstance(node, Simple) or node.is_written or not node.words:
        return None
    if node.words == ["cat"] and len(node.documents) == 1:
        return _document(node.documents[0], expansion)
    if node.documents or node.words[0] not in ("echo", "expr", "seq"):
        return None
    program, *words = expansion.words(node.words)
    if program == "echo":
        words = words[1:] if words[:1] == ["-n"] else words
        return None if words and words[0].startswith("-") and words[0][1:].isalpha() else " ".join(words)
    return _expression(words) if program == "expr" else _sequence(words)


def _document(document: HereDocument, expansion: Expanding) -> str:
    return expansion.quoted(document.text) if document.is_expanded else document.text


def _integer(expression: str) -> str | None:
    try:
        return str(arithmetic.evaluate(expression, lambda name: None, lambda name, value: None))
    except (ValueError, arithmetic.Unknown):
        return None


def _expression(words: Sequence[str]) -> str | None:
    """Compute the output of expr. It reads numbers with leading zeros as decimal, not octal."""
    if not words or not all(map(OF_EXPR.fullmatch, words)):
        return None
    return _integer(" ".join(re.sub(r"\b0+(?=\d)", "", word) for word in words))


def _calculated(expression: str | None, options: Sequence[str]) -> str | None:
    """Compute the output of bc with scale 0. Returns None for a division with options, because -l sets a scale."""
    if expression is None or not is_known(expression) or not OF_BC.fullmatch(expression) or (options and "/" in expression):
        return None
    return _integer(re.sub(r"\b0+(?=\d)", "", expression))


def _sequence(words: Sequence[str]) -> str | None:
    if not 0 < len(words) < 3 or not all(re.fullmatch(r"-?\d{1,6}", word) for word in words):
        return None
    first, last = (1, *map(int, words))[-2:]
    return "\n".join(map(str, range(first, last + 1))) if last - first < LONGEST_SEQUENCE else None
