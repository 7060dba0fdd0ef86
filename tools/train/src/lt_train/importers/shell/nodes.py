"""The syntax tree of a shell script. Words keep their source text with quotes."""

import dataclasses


@dataclasses.dataclass
class HereDocument:
    is_expanded: bool
    text: str = ""


@dataclasses.dataclass
class Simple:
    """One command. `words` include its assignments; `is_written` says that its output goes to a file."""

    words: list[str]
    line: int
    documents: list[HereDocument]
    is_written: bool = False


@dataclasses.dataclass
class Test:
    """[[ ... ]]"""

    words: list[str]


@dataclasses.dataclass
class Arithmetic:
    expression: str


@dataclasses.dataclass
class Pipeline:
    parts: "list[Node]"
    is_negated: bool


@dataclasses.dataclass
class Chain:
    """`first && second || third`, as pairs of the sign before a command and the command."""

    parts: "list[tuple[str, Node]]"


@dataclasses.dataclass
class If:
    clauses: "list[tuple[list[Node], list[Node]]]"
    otherwise: "list[Node]"


@dataclasses.dataclass
class For:
    name: str
    words: list[str] | None
    body: "list[Node]"


@dataclasses.dataclass
class While:
    condition: "list[Node]"
    is_until: bool
    body: "list[Node]"


@dataclasses.dataclass
class Case:
    word: str
    clauses: "list[tuple[list[str], list[Node]]]"


@dataclasses.dataclass
class Group:
    body: "list[Node]"
    is_subshell: bool


@dataclasses.dataclass
class Function:
    name: str
    body: "list[Node]"


Node = Simple | Test | Arithmetic | Pipeline | Chain | If | For | While | Case | Group | Function
