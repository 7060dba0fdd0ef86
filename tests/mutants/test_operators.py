"""The mutants of a line are those that a person would have thought of."""

import ast
from pathlib import Path

import operators
import pytest

ROOT = Path(__file__).parents[2]

LINES = {
    "if a < b: f()": {"if a <= b: f()", "if a >= b: f()", "if a < b: pass"},
    "x = a if not b else c": {"x = a if (b) else c"},
    "x = a and b": {"x = a or b", "x = (a)", "x = (b)"},
    "x = a + 1": {"x = a - 1", "x = a + 2"},
    "x += y": {"pass", "x -= y"},
    "x = a not in b": {"x = a in b"},
    "x = a is  not b": {"x = a is b"},
    "x = True": {"x = False"},
    "x = 0.5": {"x = 1.0"},
    "x = min(a)": {"x = max(a)"},
    "x = f(a, b)": {"x = f(b, a)"},
    "x = f(a=b)": {"x = f()"},
    "x = a[b:c]": {"x = a[:c]", "x = a[b:]"},
    "x = ~a": {"x = a"},
    "x = -a": {"x = +a"},
    "x = (a) + (b)": {"x = (a) - (b)"},
    "x = a.startswith(b)": {"x = a.endswith(b)"},
    "a.b = c": {"pass"},
    "x = 'ab'": {"x = ''", "x = 'a'"},
    "while a: f()": {"while not (a): f()", "while a: pass"},
    "x = [a for a in b if a]": {"x = [a for a in b if not (a)]"},
    "for a in b: continue": {"for a in b: pass", "for a in b: break"},
    "with f(a, b): g()": {"with f(b, a): g()", "with f(a, b): pass"},
    "raise E(f'text {a + b}')": {"pass"},
    "warn('text' + a)": set(),
    "x: int | None = a": set(),
    "assert a < b": set(),
    "if TYPE_CHECKING: f(1)": set(),
    'T = TypeVar("T", bound=int)': set(),
    "import a": set(),
    '"""Text."""': set(),
}


@pytest.mark.parametrize("line", LINES)
def test_mutants_of_a_line(line: str) -> None:
    source = line.encode()
    assert {one.apply(source).decode() for one in operators.mutants(source)} == LINES[line]


def test_mutants_of_a_function() -> None:
    source = b"@f\ndef g(a=1):\n    def h():\n        return a\n    return h\n\nclass C:\n    def m(self):\n        return 1\n"
    functions = [(one.first, one.function) for one in operators.mutants(source)]
    assert functions == [(2, None), (4, ("g", 1)), (5, ("g", 1)), (9, ("C.m", 8)), (9, ("C.m", 8))]


def test_an_operator_is_found_behind_comments_and_brackets() -> None:
    source = b"x = (a  # a < b\n  < b)\n"
    assert {one.apply(source) for one in operators.mutants(source)} == {
        b"x = (a  # a < b\n  <= b)\n",
        b"x = (a  # a < b\n  >= b)\n",
    }


def test_lines_are_those_of_the_statement_without_its_body() -> None:
    source = b"if (a and\n    b):\n    f(\n        a,\n        c)\n"
    assert {(one.operator, one.first, one.last) for one in operators.mutants(source)} == {
        ("condition", 1, 2),
        ("boolean", 1, 2),
        ("operand", 1, 2),
        ("statement", 3, 5),
        ("arguments", 3, 5),
    }


def test_offsets_are_bytes() -> None:
    source = 'x = "€" < a\n'.encode()
    assert 'x = "€" <= a\n'.encode() in {one.apply(source) for one in operators.mutants(source)}


@pytest.mark.parametrize("path", ["shared/src/lt_shared/files/strict_json.py", "shared/src/lt_shared/files/checksums.py"])
def test_each_mutant_of_a_real_module_is_another_program(path: str) -> None:
    source = (ROOT / path).read_bytes()
    found = operators.mutants(source)
    programs = {ast.dump(ast.parse(one.apply(source))) for one in found}
    assert len(found) > 10
    assert ast.dump(ast.parse(source)) not in programs
    assert found == operators.mutants(source)
