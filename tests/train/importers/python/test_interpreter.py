"""The interpreter of configurations beside Python: the same program gives the same values."""

from pathlib import Path
from typing import Any

import pytest

from lt_shared.console import BadData
from lt_train.importers.python.core import Raised
from lt_train.importers.python.interpreter import Interpreter
from lt_train.importers.python.tree import Tree
from lt_train.importers.python.values import Instance, Unknown

# Each program gives `result` plain values.
PROGRAMS = {
    "arithmetic": "result = [7 // 2, -7 % 3, 2**10, 1 << 4, 3.5 * 2, 10 / 4, ~5, -3, +2, 7 & 3, 8 | 1, 6 ^ 3, abs(-2)]",
    "chained comparisons": "a = 3\nresult = [1 < a <= 3, a == 3 != 4, a in (1, 3), a not in [3], 'x' in 'xy', None is None]",
    "and, or": "a, b = 0, 'x'\nresult = [a and b, a or b, b and a, not a, a or None, (a or b) and 5]",
    "texts": "n = 8\n"
    "result = [f'{n}b', f'{n:03d}-{1 / 3:.2f}', 'a' + 'b' * 3, '%s-%d' % ('x', 4), '{}_{k}'.format(1, k=2), 'A_B'.lower()]",
    "methods": "s = ' Llama-3.1 '\n"
    "result = [s.strip().split('-'), s.replace('L', 'l'), s.find('3'), '-'.join(['a', 'b']), 'x'.rjust(3, '0')]",
    "collections": "a = [1, 2, *range(3)]\na.append(9)\na[0] = 7\nb = {'x': 1, **{'y': 2}}\nb['z'] = 3\n"
    "result = [a, a[1:3], a[-1], b, sorted({3, 1})]",
    "unpacking": "a, *b = [1, 2, 3]\n(c, d), e = (4, 5), 6\nresult = [a, b, c, d, e]",
    "comprehensions": "result = [[i * j for i in (0, 1) if i for j in (1, 2)]]\n"
    "result += [{k: v for k, v in zip('ab', 'cd')}, sum(i for i in (1, 2))]",
    "loops": "result = []\nfor i in range(10):\n    if i == 2:\n        continue\n    if i == 5:\n        break\n"
    "    result.append(i)\n"
    "else:\n    result.append('end')\nn = 0\nwhile n < 3:\n    n += 1\nresult.append(n)",
    "functions": "def f(a, b=2, *c, d, e=5, **g):\n    return [a, b, list(c), d, e, g]\n"
    "result = [f(1, d=4), f(1, 2, 3, 4, d=5, x=6), f(*[1], **{'d': 2})]",
    "closures": "def outer(n):\n    total = n\n    def inner(k):\n        nonlocal total\n        total += k\n"
    "        return total\n    return inner\n"
    "f = outer(1)\nresult = [f(2), f(3), (lambda x, y=2: x * y)(4)]",
    "default arguments keep their value": "n = 1\ndef f(a=n):\n    return a\nn = 2\nresult = [f(), n]",
    "generators": "def numbers():\n    yield 1\n    yield from [2, 3]\nresult = [list(numbers()), any(n > 2 for n in numbers())]",
    "dataclasses": "from dataclasses import dataclass, field, replace\n@dataclass\nclass Base:\n    a: int = 1\n"
    "    b: list = field(default_factory=list)\n"
    "@dataclass\nclass Model(Base):\n    c: float = 2.5\n    a: int = 4\n    def __post_init__(self):\n"
    "        self.d = self.a * 2\n"
    "m, n = Model(7, c=1.0), Model()\nm.b.append(1)\nr = replace(m, a=5)\n"
    "result = [m.a, m.b, m.c, m.d, n.a, n.b, n.d, r.a, r.b, r.d]",
    "keyword-only fields": "from dataclasses import dataclass\n@dataclass(kw_only=True)\nclass A:\n    x: int\n    y: int = 2\n"
    "result = [A(x=1).x, A(x=3, y=4).y]",
    "inheritance": "class A:\n    n = 1\n    def name(self):\n        return 'a' + self.kind()\n    def kind(self):\n"
    "        return '?'\n"
    "class B(A):\n    def kind(self):\n        return 'b' + super().kind()\nclass C(A):\n"
    "    def kind(self):\n        return 'c' + super().kind()\n"
    "class D(B, C):\n    n = 2\n"
    "result = [D().name(), D.n, A.n, isinstance(D(), A), issubclass(D, C), [k.__name__ for k in D.__mro__][:4]]",
    "properties": "class A:\n    def __init__(self, n):\n        self._n = n\n    @property\n    def n(self):\n"
    "        return self._n\n    @n.setter\n"
    "    def n(self, value):\n        self._n = value * 2\n    @classmethod\n    def make(cls):\n"
    "        return cls(5)\n    @staticmethod\n"
    "    def two():\n        return 2\na = A(1)\na.n = 4\nresult = [a.n, A.make().n, A.two(), a.two()]",
    "attribute hooks": "class A:\n    def __setattr__(self, name, value):\n"
    "        object.__setattr__(self, name, value * 2)\na = A()\na.n = 3\nresult = [a.n]",
    "enums": "import enum\nclass Kind(str, enum.Enum):\n    A = 'a'\n    B = 'b'\nclass Plain(enum.Enum):\n    X = 1\n"
    "result = [Kind.A == 'a', Kind('b').name, Plain.X == 1, Plain.X.value, [k.value for k in Kind]]",
    "exceptions": "def f(k):\n    try:\n        return {'a': 1}[k]\n    except KeyError:\n        return 0\n"
    "    finally:\n        seen.append(k)\nseen = []\n"
    "result = [f('a'), f('b'), seen]",
    "getattr": "class A:\n    x = 1\na = A()\nsetattr(a, 'y', 2)\n"
    "result = [getattr(a, 'x'), getattr(a, 'z', 3), hasattr(a, 'y'), hasattr(a, 'z')]",
    "copies": "import copy\na = {'x': [1]}\nb, c = copy.copy(a), copy.deepcopy(a)\na['x'].append(2)\nresult = [b, c]",
    "partial": "from functools import partial\nf = partial(dict, a=1)\nresult = [f(b=2), f(a=3)]",
    "conditions": "def f(n):\n    if n > 2:\n        return 'many'\n    elif n == 2:\n        return 'two'\n"
    "    return 'few'\nresult = [f(3), f(2), f(1), 1 if f(1) else 2]",
    "walrus": "result = [y := 4, y + 1, [z for x in (1, 2) if (z := x * 2) > 2]]",
    "augmented": "a = [1]\nb = a\na += [2]\nn = 3\nn **= 2\nd = {'k': 1}\nd['k'] += 4\nd |= {'j': 2}\nresult = [a, b, n, d]",
    "numbers of texts": "import math\n"
    "result = [int('12'), float('1e-5'), str(3), math.ceil(2.1), int(2.9), bool([]), len('abc'), max(3, 4), min([2, 1])]",
    "nested classes": "class Outer:\n    class Inner:\n        n = 3\n    def make(self):\n        return Outer.Inner()\n"
    "result = [Outer().make().n, Outer.Inner.__qualname__.split('.')[-1]]",
    "global": "n = 1\ndef f():\n    global n\n    n = 5\nf()\nresult = [n]",
    "chained assignment": "class A:\n    pass\na, b = A(), A()\na.x = b.x = y = 4\nresult = [a.x, b.x, y]",
    "delete": "a = {'x': 1, 'y': 2}\ndel a['x']\nresult = [a]",
}


def interpret(text: str, directory: Path) -> tuple[Interpreter, Any]:
    file = directory / "program.py"
    file.write_text(text)
    interpreter = Interpreter(file)
    scope = interpreter.read_module(interpreter.repository.first_module())
    tree = Tree(interpreter.fields, interpreter.resolve_import)
    return interpreter, tree.convert(scope.names["result"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gives_the_values_that_python_gives(name: str, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(PROGRAMS[name], name, "exec"), names)
    assert interpret(PROGRAMS[name], tmp_path)[1] == names["result"]


UNKNOWN = "import strange\nu = strange.ask()\nclass A:\n    pass\na = A()\na.n = 1\na.m = 2\nd = {'x': 1}\nl = [1]\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("result = [u, u + 1, f'{u}', u.x, u['k'], not u, -u, u > 2]", ["?"] * 8),
        ("result = [u or 5, u and 0, 5 or u, 0 and u, 3 if u else 4]", ["?", "?", 5, 0, "?"]),
        ("if u:\n    a.n = 5\nresult = [a.n, a.m]", ["?", 2]),
        ("if u and False:\n    a.n = 5\nresult = [a.n]", [1]),
        ("if u:\n    x = 1\nelse:\n    x = 2\nresult = [x]", ["?"]),
        ("if u:\n    raise ValueError('no')\nresult = [a.n]", [1]),
        ("strange.change(a)\nresult = a", "?"),
        ("strange.change(d)\nresult = d", {"x": "?", "<unknown>": "?"}),
        ("if u:\n    l.append(2)\nresult = l", ["?"]),
        ("for i in u:\n    a.n = i\nresult = [a.n, a.m]", ["?", 2]),
        ("def f(b):\n    if u:\n        return b\n    b.n = 7\n    return b\nr = f(a)\nresult = [r, a.n, a.m]", ["?", "?", 2]),
        ("def f(b):\n    b.n = 7\nif u:\n    f(a)\nresult = [a.n, a.m]", ["?", 2]),
        ("for i in (1, 2):\n    if u:\n        break\n    a.n = i\nresult = [a.n, a.m]", ["?", 2]),
        ("d.update(y=u)\nl.append(u)\nresult = [d, l]", [{"x": 1, "y": "?"}, [1, "?"]]),
        ("d[u] = 4\nresult = d", {"x": "?", "<unknown>": "?"}),
        ("while u:\n    a.n = 3\nresult = [a.n]", ["?"]),
        ("setattr(a, u, 3)\nresult = a", "?"),
        ("result = [strange.Kind(n=1).n, isinstance(a, strange.Kind), hasattr(strange.Kind(), 'x')]", [1, False, "?"]),
        ("x = [i for i in (1, 2) if u]\nresult = [x]", ["?"]),
        ("result = [open('f').read(), __import__('os').getcwd()]", ["?"] * 2),
        (
            "import torch\nresult = [torch.half == torch.float16, torch.float16 == torch.float32, torch.version.hip is None]",
            [True, False, "?"],
        ),
        ("strange.get_part(a).n = 5\nresult = a", "?"),
    ],
)
def test_what_only_a_run_would_show_is_unknown(text: str, expected: Any, tmp_path: Path) -> None:
    assert shown(interpret(UNKNOWN + text, tmp_path)[1]) == expected


def shown(value: Any) -> Any:
    if isinstance(value, Unknown):
        return "?"
    if isinstance(value, list):
        return [shown(entry) for entry in value]
    return {key: shown(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def test_an_unknown_value_names_its_line(tmp_path: Path) -> None:
    _, value = interpret("import strange\n\nx = strange.ask(1)\nresult = [x * 2]", tmp_path)
    assert str(value[0]) == "program.py:3: strange.ask() is not in the repository"


def test_modules_of_the_repository_are_read_when_a_name_of_theirs_is(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    package = tmp_path / "src/house/rooms"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from .kitchen import SIZE as SIZE\n")
    (package / "kitchen.py").write_text("from ..base import double\nSIZE = double(4)\nNAME = __name__\n")
    (tmp_path / "src/house/__init__.py").write_text("")
    (tmp_path / "src/house/base.py").write_text("def double(n):\n    return n * 2\n")
    (tmp_path / "src/house/broken.py").write_text("this is not Python\n")
    file = tmp_path / "recipes" / "one.py"
    file.parent.mkdir()
    file.write_text(
        "import house.rooms.kitchen\nfrom house.rooms import SIZE\nfrom house.broken import anything\nfrom .none import x\n"
        "result = [SIZE, house.rooms.kitchen.NAME]\n"
    )
    interpreter = Interpreter(file)
    scope = interpreter.read_module(interpreter.repository.first_module())
    assert scope.names["result"] == [8, "house.rooms.kitchen"]


def test_what_a_program_sets_in_a_module_is_seen_there(tmp_path: Path) -> None:
    (tmp_path / "sizes.py").write_text("LAYERS = 2\ndef layers():\n    return LAYERS\n")
    assert interpret("import sizes\nsizes.LAYERS = 8\nresult = [sizes.layers()]", tmp_path)[1] == [8]


@pytest.mark.parametrize("text", ["exec('result = 1')", "eval('1')", "globals()['result'] = 1", "locals()['x'] = 1"])
def test_code_that_may_change_any_name_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match="would have to run"):
        interpret(f"def f():\n    {text}\nf()\nresult = [2]", tmp_path)


def test_modules_on_the_import_path_are_not_read(tmp_path: Path) -> None:
    _, value = interpret("import lt_train.importers.ledger as ledger\nresult = [ledger.MOST_KEYS + 1]", tmp_path)
    assert isinstance(value[0], Unknown)


@pytest.mark.parametrize(
    "text",
    [
        "def f(n):\n    return f(n + 1)\nresult = f(0)",
        "x = 'a'\nfor i in range(100):\n    x = x + x\nresult = x",
        "result = 'a' * 10**12",
        "result = 10 ** 10 ** 10",
        "result = 1 << 10**10",
        "result = list(range(10**12))",
        "result = [0] * 10**9",
        "result = '%1000000000d' % 1",
        "result = '%*d' % (10**9, 1)",
        "result = f'{1:>1000000000}'",
        "result = '{:>1000000000}'.format(1)",
        "result = 'x'.ljust(10**10)",
        "x = 'ab'\nfor i in range(60):\n    x = x.replace('a', 'aa' * 50)\nresult = x",
        "x = []\nfor i in range(10**5):\n    x.append([0] * 10**5)\nresult = x",
        "while True:\n    pass\nresult = 1",
        "result = sum(i * j for i in range(10**5) for j in range(10**5))",
        "x = [1]\nfor i in range(100):\n    x.extend(x)\nresult = x",
        "def f(n):\n    return [f(n - 1), f(n - 1)] if n else 1\nresult = f(40)",
        "result = " + "-" * 5000 + "1",
        "result = " + "(" * 150 + "1" + ")" * 150 + ".a" * 5000,
        "x = (1,)\nfor i in range(60):\n    x = (x, x)\nresult = {x: 1}",
        "a, b = [], []\nfor i in range(60):\n    a, b = [a, a], [b, b]\nresult = a == b",
        "a, b = [], []\nfor i in range(60):\n    a, b = [a, a], [b, b]\nresult = a < b or [a].index(b) or str(a)",
        "import copy\na = []\nfor i in range(200):\n    a = [a]\nresult = copy.deepcopy(a)",
        "class A(A2): pass\n" * 3000 + "result = 1",
        "result = " + "+".join(["1"] * 20000),
        "result = '\0'",
    ],
    ids=lambda text: text[:40].replace("\n", ";").replace("\0", "0"),
)
def test_hostile_programs_end_quickly(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lt_train.importers.python.limits.MOST_STEPS", 50_000)
    try:
        _, value = interpret(text, tmp_path)
    except (BadData, Raised, RecursionError):
        return
    assert len(str(value)) < 1_000_000


def test_an_instance_is_shown_with_the_name_of_its_class(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    n: int = 2\n    t: object = torch.bfloat16\n"
    )
    text += "result = A()"
    interpreter, value = interpret(text, tmp_path)
    assert value == {"_target_": "program.A", "n": 2, "t": {"_target_": "torch.bfloat16", "_call_": False}}
    assert interpreter.limits.steps < 100
    assert isinstance(Instance(None, {}), Instance)
