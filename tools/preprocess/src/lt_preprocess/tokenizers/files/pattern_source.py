r"""The split pattern in the Python code beside a tiktoken file, which is read and never run.

What counts is the value that becomes `pat_str` of a tiktoken encoding: a string literal, literals that stand next to each other,
are added or joined, or a name that the code gives such a value. Code that names no `pat_str` must state one known pattern as a
whole string, and use it in no longer one. A known pattern inside a longer one is not that pattern: `\d|` before Llama 3's cuts
numbers into digits, and nothing in the vocabulary or in a sample of English shows it.
"""

import ast
import warnings
from collections.abc import Collection, Iterator

_MOST_STEPS = 20
_ENCODING = "Encoding"


class Unclear(Exception):
    """Code whose pattern cannot be told without running it; the message says why."""


def find(sources: Collection[str], known_patterns: Collection[str]) -> str | None:
    """The pattern that the code of a tokenizer cuts text by, None when it states none. Raises Unclear."""
    codes = [_Code(source) for source in sources]
    given_patterns = {code.value(node) for code in codes for node in code.given_patterns()}
    if given_patterns:
        if None in given_patterns or len(given_patterns) > 1:
            raise Unclear(
                "gives pat_str a value that cannot be told without running it"
                if None in given_patterns
                else "has several pat_str"
            )
        return given_patterns.pop()
    stated = {pattern for code in codes for pattern in code.stated(known_patterns)}
    if len(stated) > 1:
        raise Unclear("states several split patterns")
    return stated.pop() if stated else None


class _Code:
    """The syntax tree of a module, and every value that a name gets in it, whatever the scope: names that differ are unclear."""

    def __init__(self, source: str):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise Unclear("is not Python that can be read") from None
        self._values: dict[str, list[ast.expr | None]] = {}
        classes = [node for node in ast.walk(self._tree) if isinstance(node, ast.ClassDef)]
        self._owners = {"self", "cls"} | {node.name for node in classes}
        for node in ast.walk(self._tree):
            for name, value in _named_values(node):
                self._values.setdefault(name, []).append(value)
        for statement in (statement for node in classes for statement in node.body):
            for name, value in _named_values(statement):
                self._values.setdefault(f".{name}", []).append(value)

    def given_patterns(self) -> Iterator[ast.expr]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                yield from (keyword.value for keyword in node.keywords if keyword.arg == "pat_str")
                if _called(node) == _ENCODING and len(node.args) > 1:
                    yield node.args[1]

    def stated(self, known_patterns: Collection[str]) -> set[str]:
        """The known patterns among the strings of the code. Raises Unclear for one that is a part of something else."""
        documentation = {id(node.value) for node in ast.walk(self._tree) if isinstance(node, ast.Expr)}
        composed = [node for node in ast.walk(self._tree) if isinstance(node, ast.expr) and _is_composed(node)]
        parts = {id(part) for node in composed for part in ast.walk(node) if part is not node}
        whole = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Constant | ast.BinOp | ast.JoinedStr | ast.Call) and id(node) not in documentation | parts
        ]
        values = {value for node in whole if (value := self.value(node)) is not None}
        stated_patterns = {value for value in values if value in known_patterns}
        unknown = [node for node in composed if self.value(node) is None]
        used = {
            value for node in unknown for part in ast.walk(node) if isinstance(part, ast.expr) and (value := self.value(part))
        }
        if any(pattern in value and pattern != value for value in values | used for pattern in known_patterns) or used & {
            *known_patterns
        }:
            raise Unclear("uses a known split pattern as a part of another one")
        return stated_patterns

    def value(self, node: ast.expr | None, steps: int = 0) -> str | None:
        """The string that an expression is, None when that is no constant."""
        if steps > _MOST_STEPS:
            return None
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self._joined("", [node.left, node.right], steps)
        if isinstance(node, ast.JoinedStr):
            return self._joined("", [_plain(part) for part in node.values], steps)
        if isinstance(node, ast.Call) and _called(node) == "join" and len(node.args) == 1 and not node.keywords:
            return self._join_call(node, steps)
        return self._only(self._named(node), steps)

    def _only(self, nodes: list[ast.expr | None], steps: int) -> str | None:
        values = {self.value(node, steps + 1) for node in nodes}
        return values.pop() if len(values) == 1 else None

    def _named(self, node: ast.expr | None) -> list[ast.expr | None]:
        if isinstance(node, ast.Name):
            return self._values.get(node.id, [])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._owners:
            return self._values.get(f".{node.attr}", [])
        return []

    def _join_call(self, node: ast.Call, steps: int) -> str | None:
        separator = self.value(node.func.value, steps + 1) if isinstance(node.func, ast.Attribute) else None
        [joined] = node.args
        named = self._named(joined)
        listed = named[0] if len(named) == 1 else joined
        if separator is None or not isinstance(listed, ast.List | ast.Tuple):
            return None
        return self._joined(separator, listed.elts, steps)

    def _joined(self, separator: str, nodes: "list[ast.expr] | list[ast.expr | None]", steps: int) -> str | None:
        parts = [self.value(node, steps + 1) for node in nodes]
        constant_parts = [part for part in parts if part is not None]
        return separator.join(constant_parts) if len(constant_parts) == len(parts) else None


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a statement gives values, and the values; None for one that is computed."""
    if isinstance(node, ast.Assign):
        yield from ((_name(target), node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield _name(node.target), node.value
    elif isinstance(node, ast.AugAssign):
        yield _name(node.target), None
    elif isinstance(node, ast.arguments):
        positional = [*node.posonlyargs, *node.args]
        defaults = [None] * (len(positional) - len(node.defaults)) + node.defaults
        yield from ((argument.arg, value) for argument, value in zip(positional, defaults, strict=True))
        yield from ((argument.arg, value) for argument, value in zip(node.kwonlyargs, node.kw_defaults, strict=True))


def _name(target: ast.expr) -> str:
    """A name, or the name of an attribute after a period."""
    return target.id if isinstance(target, ast.Name) else f".{target.attr}" if isinstance(target, ast.Attribute) else ""


def _called(node: ast.Call) -> str:
    return _name(node.func).removeprefix(".")


def _plain(part: ast.expr) -> ast.expr | None:
    """What stands in the braces of an f-string, unless it is formatted in some way."""
    if isinstance(part, ast.FormattedValue):
        return part.value if part.conversion == -1 and part.format_spec is None else None
    return part


def _is_composed(node: ast.expr) -> bool:
    """Whether this expression joins strings into a longer one."""
    if isinstance(node, ast.Call):
        return _called(node) in ("join", "format", "replace", "sub")
    return isinstance(node, ast.BinOp | ast.JoinedStr)
