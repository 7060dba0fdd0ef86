"""Evaluate shell arithmetic: 64-bit integers, C's operators, and variables by name.

This is a precedence-climbing parser, so no text of a script is evaluated as Python. An unknown variable raises Unknown. bash
reads an unset variable as 0, but here the environment of the real run may set it.
"""

import dataclasses
import functools
import operator
import re
from collections.abc import Callable

TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|\d+#\w+|\d+)|([A-Za-z_]\w*(?:\[[^\]]{0,80}\])?)"
    r"|(<<=|>>=|\*\*|\+\+|--|&&|\|\||<<|>>|[<>=!]=|[-+*/%&|^]=|[-+*/%<>=!~&|^?:(),]))"
)
BINARY = {
    name: precedence
    for precedence, names in enumerate(
        (
            ("||",),
            ("&&",),
            ("|",),
            ("^",),
            ("&",),
            ("==", "!="),
            ("<", ">", "<=", ">="),
            ("<<", ">>"),
            ("+", "-"),
            ("*", "/", "%"),
        )
    )
    for name in names
}
ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
DEEPEST = 40
LONGEST = 2_000
SIGN = 1 << 63


class Unknown(Exception):
    """A value depends on unknown variables, whose names are `names`."""

    def __init__(self, *names: str):
        super().__init__(*names)
        self.names = names


def evaluate(text: str, read: Callable[[str], str | None], assign: Callable[[str, str], None], depth: int = 0) -> int:
    """Evaluate an expression. `read` returns the text of a variable, or None if it is unknown.

    Raises Unknown, and ValueError for a syntax error.
    """
    if depth > DEEPEST or len(text) > LONGEST:
        raise ValueError("arithmetic too deep to follow")
    parser = _Parser(_tokens(text), read, assign, depth)
    if not parser.tokens:
        return 0
    value = parser.sequence()
    if parser.tokens:
        raise ValueError(f"not arithmetic: {text}")
    return value


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while text[position:].strip():
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"not arithmetic: {text}")
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


def _wrapped(value: int) -> int:
    return (value + SIGN) % (2 * SIGN) - SIGN


def _divided(lhs: int, rhs: int) -> int:
    if rhs == 0:
        raise ValueError("division by zero")
    quotient = abs(lhs) // abs(rhs)
    return quotient if (lhs < 0) == (rhs < 0) else -quotient


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "|": operator.or_,
    "^": operator.xor,
    "&": operator.and_,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "<<": lambda lhs, rhs: lhs << (rhs & 63),
    ">>": lambda lhs, rhs: lhs >> (rhs & 63),
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "%": lambda lhs, rhs: lhs - rhs * _divided(lhs, rhs),
}


@dataclasses.dataclass
class _Parser:
    """Parse and evaluate in one pass. With `is_live` off, as after `0 &&`, it parses only: no variable is read or assigned."""

    tokens: list[str]
    read: Callable[[str], str | None]
    assign: Callable[[str, str], None]
    depth: int
    is_live: bool = True
    level: int = 0

    def sequence(self) -> int:
        value = self.assignment()
        while self._next(","):
            value = self.assignment()
        return value

    def assignment(self) -> int:
        if len(self.tokens) > 1 and _is_name(self.tokens[0]) and self.tokens[1] in ASSIGNING:
            name, sign = self.tokens.pop(0), self.tokens.pop(0)
            before = self._variable(name) if sign != "=" else 0
            value = self.assignment()
            if sign != "=":
                value = self._applied(sign[:-1], before, value)
            return self._assigned(name, value)
        return self.choice()

    def choice(self) -> int:
        self.level += 1
        if self.level > DEEPEST:
            raise ValueError("arithmetic too deep to follow")
        condition = self.binary(0)
        if self._next("?"):
            first = self._if_live(bool(condition), self.assignment)
            self._expect(":")
            second = self._if_live(not condition, self.assignment)
            condition = first if condition else second
        self.level -= 1
        return condition

    def binary(self, least: int) -> int:
        lhs = self.power()
        while self.tokens and BINARY.get(self.tokens[0], -1) >= least:
            sign = self.tokens.pop(0)
            following = BINARY[sign] + 1
            if sign in ("&&", "||"):
                is_open = bool(lhs) == (sign == "&&")
                rhs = self._if_live(is_open, functools.partial(self.binary, following))
                lhs = int(bool(rhs)) if is_open else int(bool(lhs))
            else:
                lhs = self._applied(sign, lhs, self.binary(following))
        return lhs

    def power(self) -> int:
        base = self.unary()
        if not self._next("**"):
            return base
        exponent = self.power()
        # bash refuses a negative exponent also where it evaluates nothing; a division by zero there it passes over.
        if exponent < 0:
            raise ValueError("an exponent out of range")
        return _wrapped(pow(base, exponent, 1 << 64)) if self.is_live else 0

    def unary(self) -> int:
        self.level += 1
        if self.level > DEEPEST or not self.tokens:
            raise ValueError("arithmetic that ends early, or too deep to follow")
        token = self.tokens.pop(0)
        value = self._prefixed(token)
        self.level -= 1
        return value

    def _prefixed(self, token: str) -> int:
        if token in ("++", "--") and self.tokens and _is_name(self.tokens[0]):
            name = self.tokens.pop(0)
            return self._assigned(name, self._variable(name) + (1 if token == "++" else -1))
        if token in ("+", "-", "!", "~", "++", "--"):
            value = self.unary()
            return {"-": _wrapped(-value), "!": int(not value), "~": ~value}.get(token, value)
        if token == "(":
            value = self.sequence()
            self._expect(")")
            return value
        return self._named(token) if _is_name(token) else _number(token)

    def _named(self, name: str) -> int:
        value = self._variable(name)
        for sign, change in (("++", 1), ("--", -1)):
            if self._next(sign):
                self._assigned(name, value + change)
        return value

    def _variable(self, name: str) -> int:
        if not self.is_live:
            return 0
        text = self.read(name)
        if text is None:
            raise Unknown(name)
        return evaluate(text, self.read, self.assign, self.depth + 1)

    def _assigned(self, name: str, value: int) -> int:
        value = _wrapped(value)
        if self.is_live:
            self.assign(name, str(value))
        return value

    def _applied(self, sign: str, lhs: int, rhs: int) -> int:
        return _wrapped(int(OPERATIONS[sign](lhs, rhs))) if self.is_live else 0

    def _if_live(self, is_live: bool, parse: Callable[[], int]) -> int:
        before, self.is_live = self.is_live, self.is_live and is_live
        value = parse()
        self.is_live = before
        return value

    def _next(self, token: str) -> bool:
        is_next = self.tokens[:1] == [token]
        if is_next:
            self.tokens.pop(0)
        return is_next

    def _expect(self, token: str) -> None:
        if not self._next(token):
            raise ValueError(f"not arithmetic: {token} is missing")


def _is_name(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


def _number(token: str) -> int:
    if "#" in token:
        base, _, digits = token.partition("#")
        return _wrapped(int(digits, int(base)))
    if not token[0].isdigit():
        raise ValueError(f"not arithmetic: {token}")
    is_octal = token[0] == "0" and token.isdigit()
    return _wrapped(int(token, 8) if is_octal else int(token, 0))
