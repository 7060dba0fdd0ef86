"""What a shell script says without being run: assignments, defaults and arrays are followed, and nothing else.

Scripts around Megatron-LM keep its options in variables: `: "${NUM_LAYERS:=36}"`, `ARGS=(--num-layers $NUM_LAYERS)`, then
`pretrain_gpt.py "${ARGS[@]}"`. A variable that is set by a command's output, or under a condition that known values leave open,
is not known here, and a word that needs it keeps its dollar sign. The environment is not looked at: a script is translated alike
everywhere.
"""

import dataclasses
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from lt_train.config import credentials
from lt_train.importers.shell_conditions import Branch, Branches, decide

ARRAY = re.compile(r"\s*(?:declare\s+-a\s+|local\s+-a\s+)?(\w+)\+?=\(")
ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.DOTALL)
DEFAULT = re.compile(r"\$\{(\w+):?=(.*)\}", re.DOTALL)
WHOLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?\})")
PART = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}]*))?\})")
# What stands behind the words of a command: a redirection, or a pipe to another command.
REDIRECTION = re.compile(r"\d?(>|>>|<|>&|&>)\d?(&\d)?|\||\|&")
SEPARATORS = ("&&", "||", ";", "&")
COMMENT = re.compile(r"(^|\s)#.*")
DECLARING = ("export", "declare", "local", "readonly")
CONDITIONAL = ("if", "elif")
OPENING, CLOSING = ("if", "case", "for", "while", "until"), ("fi", "esac", "done")
TESTING = (*OPENING, "then", "else", "elif", "[", "[[", "test")
LONGEST_STATEMENT_LINES = 100
# Variables that contain themselves grow without end.
LONGEST_VALUE = 100_000


@dataclasses.dataclass(frozen=True)
class ShellCommand:
    """Its words, variables replaced where they are known.

    `conditional` are the variables whose value depends on a condition; an array among them has the words that it may have.
    """

    words: list[str]
    conditional: Mapping[str, Sequence[str]]


def commands(text: str, given: Mapping[str, str] | None = None) -> Iterator[ShellCommand]:
    """Each command that may be run; values in `given` come before the script's own. Raises ValueError for a quote left open."""
    variables = _Variables({name: [value] for name, value in (given or {}).items()})
    branches = Branches()
    for words, array in _statements(text):
        if array:
            if branches.now is not Branch.LEFT_OUT:
                content = [part for word in words[1:] for part in _expanded(word, variables)]
                variables.assign_array(array, content, words[0] == "+", branches.now)
            continue
        is_whole = _follow(branches, words, variables)
        if branches.now is Branch.LEFT_OUT:
            continue
        if words[0] in TESTING:
            for name, _, _ in _matches(ASSIGNMENT, words):
                variables.assign(name, [], Branch.UNKNOWN)
            if words[0] in (*CONDITIONAL, "[", "[[", "test") and not is_whole:
                continue
        for part in [words] if words[0] in TESTING else _chained(words):
            yield from _followed(part, variables, branches.now)


def _followed(words: Sequence[str], variables: "_Variables", branch: Branch) -> Iterator[ShellCommand]:
    """Assign what one command assigns, or give it with its variables replaced."""
    assignments = _leading_assignments(words)
    rest = words[len(assignments) :]
    if rest[:1] == [":"]:
        for name, value in _matches(DEFAULT, rest[1:]):
            if name not in variables:
                variables.assign(name, [_replaced(value, variables)], branch)
    elif not rest:
        for name, more, value in _matches(ASSIGNMENT, assignments):
            known_text = " ".join(variables.get(name, [])) if more else ""
            variables.assign(name, [known_text + _replaced(value, variables)], branch)
    else:
        expanded = [part for word in rest for part in _expanded(word, variables)]
        for command in _chained(_evaluated(expanded)):
            kept = itertools.takewhile(lambda word: not REDIRECTION.fullmatch(word), command)
            yield ShellCommand(list(kept), dict(variables.conditional))


def _chained(words: Sequence[str]) -> Iterator[list[str]]:
    """The commands of one line: `cd /workspace && torchrun ...`, `cd /workspace; torchrun ...`."""
    command: list[str] = []
    for word in words:
        ends = word in SEPARATORS or word.endswith(";")
        if word not in SEPARATORS:
            command.append(word.removesuffix(";") if ends else word)
        if ends and command:
            yield command
            command = []
    if command:
        yield command


def _evaluated(words: list[str]) -> list[str]:
    """A command that a script puts together in a variable is run by `eval "$command"`."""
    if words[:1] != ["eval"]:
        return words
    try:
        return _joined(shlex.split(" ".join(words[1:])))
    except ValueError:
        return words


def _follow(branches: Branches, words: Sequence[str], variables: Mapping[str, list[str]]) -> bool:
    """Open, change or close a condition; whether the statement is a whole one on one line, whose parts are not told apart."""
    first, last = words[0], words[-1].rstrip(";")
    if first in OPENING:
        if last in CLOSING:
            return True
        branches.open(_decided(words, variables) if first == "if" else None)
    elif first == "elif":
        branches.otherwise(_decided(words, variables))
    elif first == "else":
        branches.otherwise()
    elif first.rstrip(";") in CLOSING:
        branches.close()
    return False


def _decided(words: Sequence[str], variables: Mapping[str, list[str]]) -> bool | None:
    test = list(itertools.takewhile(lambda word: word != "then", words[1:]))
    return decide([_replaced(word, variables) for word in test])


class _Variables(dict[str, list[str]]):
    """Those that are given stay as they are."""

    def __init__(self, given: Mapping[str, list[str]]):
        super().__init__(given)
        self._given = frozenset(given)
        self.conditional: dict[str, list[str]] = {}

    def assign(self, name: str, values: list[str], branch: Branch) -> None:
        """Under a condition a variable has one value or another. A secret stays behind the name of its variable."""
        if name in self._given:
            return
        if branch is Branch.UNKNOWN:
            before = self.get(name, [])
            if len(values) == len(before) == 1 and values[0].startswith(before[0]) and not before[0].endswith(f"${name}"):
                self.conditional.setdefault(name, []).extend(values[0][len(before[0]) :].split())
                self[name] = [f"{before[0]} ${name}"]
                return
            self.conditional.setdefault(name, [])
        if branch is Branch.UNKNOWN or credentials.is_secret(name) or sum(map(len, values)) > LONGEST_VALUE:
            values = [f"${name}"]
        self[name] = values

    def assign_array(self, name: str, words: list[str], is_appended: bool, branch: Branch) -> None:
        """Words that a condition adds stand behind the name of the array, after those that it has in any case."""
        if name in self._given:
            return
        known = self.get(name, []) if is_appended else []
        if branch is Branch.UNKNOWN:
            self.conditional.setdefault(name, []).extend(words)
            marker = f"${name}"
            self[name] = known if marker in known else [*known, marker]
        else:
            self.assign(name, [*known, *words], branch)


def _matches(pattern: re.Pattern[str], words: Sequence[str]) -> Iterator[Sequence[str]]:
    """The groups of each word that is one of `pattern`."""
    return (matched.groups() for matched in map(pattern.fullmatch, words) if matched)


def needs_shell(word: str) -> bool:
    return "$" in word or "`" in word


def variables_in(word: str) -> list[str]:
    return [found[1] or found[2] for pattern in (WHOLE, PART) for found in pattern.finditer(word)]


def _leading_assignments(words: Sequence[str]) -> list[str]:
    """Also the word that declares them."""
    found: list[str] = []
    for word in words:
        if not (ASSIGNMENT.fullmatch(word) or (not found and word in DECLARING)):
            break
        found.append(word)
    return found


def _expanded(word: str, variables: Mapping[str, list[str]]) -> list[str]:
    """A word that is one variable becomes its words."""
    whole = WHOLE.fullmatch(word)
    values = variables.get(whole[1] or whole[2]) if whole else None
    if values is None:
        return [_replaced(word, variables)]
    if len(values) != 1 or values == [word]:
        return values
    try:
        return _joined(shlex.split(values[0]))
    except ValueError:
        return values


def _replaced(text: str, variables: Mapping[str, list[str]]) -> str:
    def value(matched: re.Match[str]) -> str:
        known = variables.get(matched[1] or matched[2])
        if known is not None:
            return " ".join(known)
        return matched[0] if matched[3] is None else _replaced(matched[3], variables)

    return PART.sub(value, text)


def _joined(words: Sequence[str]) -> list[str]:
    """Words with each $(command with its arguments) in one."""
    found: list[str] = []
    for word in words:
        is_open = bool(found) and (found[-1].count("$(") > found[-1].count(")") or found[-1].count("`") % 2 == 1)
        if is_open:
            found[-1] += f" {word}"
        else:
            found.append(word)
    return found


def _statements(text: str) -> Iterator[tuple[list[str], str | None]]:
    """(words, None) of a line, or ("+" or "=" and the words, name) of an array; quotes and parentheses may span lines."""
    lines = text.replace("\\\n", " ").splitlines()
    line = 0
    while line < len(lines):
        array = ARRAY.match(lines[line])
        for end in range(line + 1, min(len(lines), line + LONGEST_STATEMENT_LINES) + 1):
            statement = "\n".join(lines[line:end])
            bare = COMMENT.sub("", statement) if array else ""
            if bare.count("(") > bare.count(")"):
                continue
            try:
                words = shlex.split(statement[array.end() :].rpartition(")")[0] if array else statement, comments=True)
            except ValueError:
                continue
            break
        else:
            if "pretrain_" in lines[line]:
                raise ValueError("a quote or a parenthesis is left open")
            line += 1
            continue
        if array:
            yield ["+" if "+=(" in array[0] else "=", *_joined(words)], array[1]
        elif words:
            yield _joined(words), None
        line = end
