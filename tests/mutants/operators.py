"""Mutants of a Python module: its source with one small mistake in it, of the kind that people make.

A mutant is a replacement of bytes of the source, so that its diff shows what a person would have typed. Left alone are
docstrings, annotations, assertions, `if TYPE_CHECKING`, and the texts of errors: nobody is misled by a mistake there for long.
"""

import ast
import dataclasses
import re
from collections.abc import Iterator

COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
SPELLED: dict[type[ast.AST], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not",
    ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.And: "and",
    ast.Or: "or", ast.MatMult: "@",
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*", ast.LShift: ">>",
    ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.BitXor: "&",
}  # fmt: skip
OPPOSITES = {
    "min": "max", "any": "all", "startswith": "endswith", "find": "rfind", "lstrip": "rstrip", "removeprefix": "removesuffix",
    "partition": "rpartition", "floor": "ceil", "split": "rsplit", "bisect_left": "bisect_right", "lower": "upper",
}  # fmt: skip
OPPOSITES |= {other: one for one, other in OPPOSITES.items()}
# Calls whose arguments are words for people.
SPEAKING = {"warn", "note", "print", "echo", "fail"}
# Calls that only a type checker reads.
TYPING = {"TypeVar", "NewType", "cast"}
# Calls whose two arguments may be swapped.
COMMUTATIVE = {"isinstance", "min", "max", "gcd", "samestat", "isclose", "suppress", "array_equal"}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`source[begin:end]` becomes `replacement`. `first` to `last` are the lines whose execution the mistake can change.

    `function` is the outermost function around it, by qualified name and first line; None outside of functions.
    """

    operator: str
    begin: int
    end: int
    replacement: bytes
    first: int
    last: int
    function: tuple[str, int] | None

    def apply(self, source: bytes) -> bytes:
        return source[: self.begin] + self.replacement + source[self.end :]


def candidates(source: bytes) -> Iterator[Mutant]:
    """All changes that the operators make, also those that come to nothing."""
    return _Walk(source).module(ast.parse(source))


def mutants(source: bytes) -> list[Mutant]:
    """All mutants of a module in the order of the source, without those that mean the same as the module or do not compile."""
    original = ast.dump(ast.parse(source))
    found: dict[tuple[int, int, bytes], Mutant] = {}
    for mutant in candidates(source):
        try:
            changed = ast.parse(mutant.apply(source))
            compile(changed, "mutant", "exec")
        except (SyntaxError, ValueError):
            continue
        if ast.dump(changed) != original:
            found.setdefault((mutant.begin, mutant.end, mutant.replacement), mutant)
    return sorted(found.values(), key=lambda one: (one.begin, one.end, one.replacement))


class _Walk:
    """One pass over the tree that knows the statement and the function in which it is."""

    def __init__(self, source: bytes):
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []
        self.function: tuple[str, int] | None = None
        self.lines = (0, 0)

    def module(self, tree: ast.Module) -> Iterator[Mutant]:
        yield from self.body(tree.body)

    def begin(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self.starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt | ast.keyword) -> bytes:
        return self.source[self.begin(node) : self.end(node)]

    def replaced(self, operator: str, begin: int, end: int, replacement: str | bytes) -> Mutant:
        new = replacement.encode() if isinstance(replacement, str) else replacement
        return Mutant(operator, begin, end, new, *self.lines, self.function)

    def instead(self, operator: str, node: ast.expr | ast.stmt, replacement: str | bytes) -> Mutant:
        return self.replaced(operator, self.begin(node), self.end(node), replacement)

    def body(self, statements: list[ast.stmt]) -> Iterator[Mutant]:
        for statement in statements:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text and not isinstance(statement, (ast.Assert, ast.Import, ast.ImportFrom)):
                yield from self.statement(statement)

    def statement(self, node: ast.stmt) -> Iterator[Mutant]:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from self.definition(node)
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        bodies = [getattr(node, name) for name in ("body", "orelse", "finalbody") if getattr(node, name, None)]
        header_end = min((body[0].lineno - 1 for body in bodies), default=node.end_lineno or node.lineno)
        self.lines = (node.lineno, max(node.lineno, header_end))
        yield from self.dropped(node)
        yield from self.header(node)
        for body in bodies:
            yield from self.body(body)
        for handler in getattr(node, "handlers", []):
            yield from self.body(handler.body)
        for case in getattr(node, "cases", []):
            yield from self.body(case.body)

    def definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> Iterator[Mutant]:
        self.lines = (node.lineno, node.body[0].lineno - 1)
        if not isinstance(node, ast.ClassDef):
            for default in [*node.args.defaults, *(one for one in node.args.kw_defaults if one)]:
                yield from self.expression(default)
        outer, self.names = self.names, [*self.names, node.name]
        is_outermost = self.function is None and not isinstance(node, ast.ClassDef)
        if is_outermost:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            self.function = (".".join(self.names), first)
        yield from self.body(node.body)
        if is_outermost:
            self.function = None
        self.names = outer

    def dropped(self, node: ast.stmt) -> Iterator[Mutant]:
        """The statement left out, or another one in its place."""
        match node:
            case ast.Expr(value=ast.Call(func=called)) if _last_name(called) not in SPEAKING:
                yield self.instead("statement", node, "pass")
            case ast.Raise() | ast.AugAssign() | ast.Delete():
                yield self.instead("statement", node, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield self.instead("statement", node, "pass")
            case ast.Continue():
                yield self.instead("statement", node, "pass")
                yield self.instead("statement", node, "break")
            case ast.Break():
                yield self.instead("statement", node, "pass")
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield self.instead("return", node, "return None")
            case ast.Return(value=None):
                yield self.instead("statement", node, "pass")

    def header(self, node: ast.stmt) -> Iterator[Mutant]:
        """Mutants of the expressions that belong to the statement itself."""
        match node:
            case ast.AnnAssign():
                yield from self.expression(node.value)
            case ast.AugAssign() if type(node.op) in ARITHMETIC:
                spelled, other = SPELLED[type(node.op)], ARITHMETIC[type(node.op)]
                yield self.between("arithmetic", node.target, node.value, f"{spelled}=", f"{other}=")
                yield from self.expression(node.value)
            case ast.Raise():
                # What is said is left alone, what is raised is tested by the statement's removal.
                return
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    yield from self.expression(item.context_expr)
            case _:
                if isinstance(node, (ast.If, ast.While)):
                    yield from self.condition(node.test)
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        yield from self.expression(child)

    def condition(self, test: ast.expr) -> Iterator[Mutant]:
        if not isinstance(test, (ast.Compare, ast.Constant)) and not _is_negation(test):
            yield self.instead("condition", test, b"not (" + self.text(test) + b")")

    def expression(self, node: ast.AST | None) -> Iterator[Mutant]:
        if node is None or isinstance(node, ast.JoinedStr):
            return
        yield from self.own(node)
        if isinstance(node, ast.Call) and _last_name(node.func) in SPEAKING | TYPING:
            return
        for child in ast.iter_child_nodes(node):
            if not (isinstance(node, ast.arguments) and isinstance(child, ast.arg)):
                yield from self.expression(child)

    def own(self, node: ast.AST) -> Iterator[Mutant]:
        """Mutants of the node itself, not of what is in it."""
        match node:
            case ast.Compare():
                left = node.left
                for operator, right in zip(node.ops, node.comparators, strict=True):
                    for other in COMPARISONS[type(operator)]:
                        yield self.between("comparison", left, right, SPELLED[type(operator)], other)
                    left = right
            case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text(node.left):
                yield self.between("arithmetic", node.left, node.right, SPELLED[type(node.op)], ARITHMETIC[type(node.op)])
            case ast.BoolOp():
                yield from self.boolean(node)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self.instead("not", node, b"(" + self.text(operand) + b")")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                yield self.instead("arithmetic", node, b"+" + self.text(operand))
            case ast.UnaryOp(op=ast.Invert(), operand=operand):
                yield self.instead("arithmetic", node, self.text(operand))
            case ast.IfExp(test=test):
                yield from self.condition(test)
            case ast.comprehension(ifs=conditions):
                for test in conditions:
                    yield from self.condition(test)
            case ast.Constant():
                yield from self.constant(node)
            case ast.Call():
                yield from self.call(node)
            case ast.Slice():
                yield from self.slice(node)

    def between(self, name: str, left: ast.expr, right: ast.expr, spelled: str, other: str) -> Mutant:
        """Another operator between two operands."""
        begin, end = self.end(left), self.begin(right)
        pattern = re.escape(spelled).replace(r"\ ", r"\s+").encode()
        found = re.search(rb"(?:#[^\n]*\n|[^#])*?(" + pattern + rb")", self.source[begin:end], re.DOTALL)
        assert found is not None, (self.source[begin:end], spelled)
        return self.replaced(name, begin + found.start(1), begin + found.end(1), other)

    def boolean(self, node: ast.BoolOp) -> Iterator[Mutant]:
        other = "or" if isinstance(node.op, ast.And) else "and"
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield self.between("boolean", left, right, SPELLED[type(node.op)], other)
        if len(node.values) == 2:
            for kept in node.values:
                yield self.instead("operand", node, b"(" + self.text(kept) + b")")

    def constant(self, node: ast.Constant) -> Iterator[Mutant]:
        value = node.value
        if isinstance(value, bool):
            yield self.instead("constant", node, str(not value))
        elif isinstance(value, int):
            yield self.instead("constant", node, str(value + 1))
        elif isinstance(value, float):
            yield self.instead("constant", node, repr(value * 2 if value else 1.0))
        elif isinstance(value, (str, bytes)) and value:
            yield self.instead("constant", node, repr(value[:0]))
            if len(value) > 1:
                yield self.instead("constant", node, repr(value[:-1]))

    def call(self, node: ast.Call) -> Iterator[Mutant]:
        name = _last_name(node.func)
        if name in TYPING:
            return
        if name in OPPOSITES:
            end = self.end(node.func)
            yield self.replaced("opposite", end - len(name), end, OPPOSITES[name])
        if len(node.args) == 2 and not any(isinstance(one, ast.Starred) for one in node.args) and name not in COMMUTATIVE:
            first, second = node.args
            between = self.source[self.end(first) : self.begin(second)]
            swapped = self.text(second) + between + self.text(first)
            yield self.replaced("arguments", self.begin(first), self.end(second), swapped)
        for keyword in node.keywords:
            if keyword.arg is not None and (name, keyword.arg) != ("zip", "strict"):
                tail = re.match(rb"\s*,\s*", self.source[self.end(keyword) :])
                begin, end = self.begin(keyword), self.end(keyword) + (tail.end() if tail else 0)
                yield self.replaced("keyword", begin, end, "")

    def slice(self, node: ast.Slice) -> Iterator[Mutant]:
        for bound in (node.lower, node.upper):
            if bound is not None:
                yield self.instead("slice", bound, "")


def _is_negation(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
