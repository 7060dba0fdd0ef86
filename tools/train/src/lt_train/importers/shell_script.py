"""What a shell script says without being run: assignments, defaults and arrays are followed, and nothing else.

Scripts around Megatron-LM keep its options in variables: `: "${NUM_LAYERS:=36}"`, `ARGS=(--num-layers $NUM_LAYERS)`, then
`pretrain_gpt.py "${ARGS[@]}"`. A variable that is set under a condition, or by a command's output, is not known here, and a word
that needs it keeps its dollar sign. The environment is not looked at: a script is translated alike everywhere.
"""

import re
import shlex
from collections.abc import Iterator, Sequence

from lt_train.config import credentials

ARRAY = re.compile(r"\s*(?:declare\s+-a\s+|local\s+-a\s+)?(\w+)\+?=\(")
ASSIGNMENT = re.compile(r"(\w+)(\+?)=(.*)", re.DOTALL)
DEFAULT = re.compile(r"\$\{(\w+):?=(.*)\}", re.DOTALL)
WHOLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?\})")
PART = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^{}]*))?\})")
COMMENT = re.compile(r"(^|\s)#.*")
DECLARING = ("export", "declare", "local", "readonly")
OPENING, CLOSING = ("if", "case", "for", "while", "until"), ("fi", "esac", "done")
TESTING = (*OPENING, "then", "else", "elif", "[", "[[", "test")
LONGEST_STATEMENT_LINES = 100
# Variables that contain themselves grow without end.
LONGEST_VALUE = 100_000


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command, variables replaced where they are known. Raises ValueError for a quote that is left open."""
    variables: dict[str, list[str]] = {}
    depth = 0
    for words, array in _statements(text):
        if array:
            known = variables.get(array, []) if words[:1] == ["+"] else []
            _set(variables, array, [*known, *(part for word in words[1:] for part in _expanded(word, variables))], depth)
            continue
        opens = words[0] in OPENING
        depth += opens
        if words[0] in TESTING:
            for name, _, _ in _matches(ASSIGNMENT, words):
                _set(variables, name, [], 1)
        assignments = _leading_assignments(words)
        rest = words[len(assignments) :]
        if rest[:1] == [":"]:
            for name, value in _matches(DEFAULT, rest[1:]):
                if name not in variables:
                    _set(variables, name, [_replaced(value, variables)], depth)
        elif not rest:
            for name, more, value in _matches(ASSIGNMENT, assignments):
                known_text = " ".join(variables.get(name, [])) if more else ""
                _set(variables, name, [known_text + _replaced(value, variables)], depth)
        else:
            yield [part for word in rest for part in _expanded(word, variables)]
        depth = max(0, depth - (words[-1 if opens else 0].rstrip(";") in CLOSING))


def _matches(pattern: re.Pattern[str], words: Sequence[str]) -> Iterator[Sequence[str]]:
    """The groups of each word that is one of `pattern`."""
    return (matched.groups() for matched in map(pattern.fullmatch, words) if matched)


def needs_shell(word: str) -> bool:
    return "$" in word or "`" in word


def _set(variables: dict[str, list[str]], name: str, values: list[str], depth: int) -> None:
    """Under a condition a variable has one value or another. A secret stays behind the name of its variable."""
    if depth or credentials.is_secret(name) or sum(map(len, values)) > LONGEST_VALUE:
        values = [f"${name}"]
    variables[name] = values


def _leading_assignments(words: Sequence[str]) -> list[str]:
    """Also the word that declares them."""
    found: list[str] = []
    for word in words:
        if not (ASSIGNMENT.fullmatch(word) or (not found and word in DECLARING)):
            break
        found.append(word)
    return found


def _expanded(word: str, variables: dict[str, list[str]]) -> list[str]:
    """A word that is one variable becomes its words."""
    whole = WHOLE.fullmatch(word)
    values = variables.get(whole[1] or whole[2]) if whole else None
    if values is None:
        return [_replaced(word, variables)]
    if len(values) != 1 or needs_shell(values[0]):
        return values
    try:
        return _joined(shlex.split(values[0]))
    except ValueError:
        return values


def _replaced(text: str, variables: dict[str, list[str]]) -> str:
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
