"""Expand words of a shell script like bash: quotes, variables, substitutions and arithmetic.

The output of a command is unknown, except for the commands that `output.command_output` computes.
"""

import fnmatch
import re
from collections.abc import Callable, Sequence

from lt_train.importers.shell import arithmetic
from lt_train.importers.shell.quoting import end_of_quoted
from lt_train.importers.shell.unknown import OPENING, is_known, unknown, written
from lt_train.importers.shell.variables import Value, Variables, names_behind, words_in

NAMED = re.compile(r"\$([A-Za-z_]\w*|\d|[@*#?$!-])")
BRACED = re.compile(r"(?P<hash>#)?(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?(?P<operation>.*)", re.DOTALL)
DEFAULTING = re.compile(r"(:?)([-=?+])(.*)", re.DOTALL)
SLICE = re.compile(r":\s*(\(?-?\s*[^:]+?\)?)\s*(?::(.*))?", re.DOTALL)
RANGE = re.compile(r"\{(-?\d{1,6})\.\.(-?\d{1,6})\}")
CASES: dict[str, Callable[[str], str]] = {"^^": str.upper, ",,": str.lower}
ENDING = "\\$`'\"<>" + OPENING
ALL = ("@", "*")
LONGEST_MATCHED = 2_000
# ${NAME/pattern/text} tries every start with every length, which takes quadratic time in the length of the value.
LONGEST_SEARCHED = 300
WILD = re.compile(r"[*?\[]")
MOST_OF_RANGE = 64
DEEPEST = 30


class Expansion:
    """Expand words with the values of `variables`. `output` returns what a command prints, or None if that is unknown."""

    def __init__(self, variables: Variables, output: Callable[[str], str | None]):
        self._variables = variables
        self._output = output
        self._depth = 0

    def words(self, sources: Sequence[str]) -> list[str]:
        return [word for source in sources for word in self.fields(source)]

    def fields(self, source: str) -> list[str]:
        """Expand one word into fields. An unquoted word may become several fields or none."""
        span = RANGE.fullmatch(source)
        if span and abs(int(span[2]) - int(span[1])) < MOST_OF_RANGE:
            step = 1 if int(span[2]) >= int(span[1]) else -1
            return [str(number) for number in range(int(span[1]), int(span[2]) + step, step)]
        return self._fields(source, False)

    def text(self, source: str) -> str:
        """Expand one word into one text without word splitting, as in an assignment."""
        return " ".join(self._fields(source, False, is_split=False))

    def quoted(self, source: str) -> str:
        """Expand the text between double quotes, or the text of a here-document."""
        return " ".join(self._fields(source, True))

    def _fields(self, source: str, is_quoted: bool, is_split: bool = True) -> list[str]:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError("nested too deeply")
        fields = _Fields()
        position = 0
        while position < len(source):
            end = self._piece_end(source, position, is_quoted)
            self._add(fields, source[position:end], is_quoted, is_split)
            position = end
        self._depth -= 1
        return fields.words

    def _piece_end(self, source: str, position: int, is_quoted: bool) -> int:
        character = source[position]
        if character == "\\":
            return min(position + 2, len(source))
        if character == "$":
            named = NAMED.match(source, position)
            return named.end() if named else end_of_quoted(source, position)
        if character in ("`", OPENING) or (not is_quoted and (character in "'\"" or source.startswith(("<(", ">("), position))):
            return end_of_quoted(source, position)
        end = position + 1
        while end < len(source) and source[end] not in ENDING:
            end += 1
        return end

    def _add(self, fields: "_Fields", piece: str, is_quoted: bool, is_split: bool) -> None:
        if piece.startswith("\\"):
            fields.add(_unescaped(piece, is_quoted))
        elif (piece[0] == "$" and len(piece) > 1 and (is_quoted or piece[1] not in "'\"")) or (
            piece[0] == "`" and len(piece) > 1
        ):
            self._add_value(fields, piece, is_quoted, is_split)
        elif piece[0] == OPENING and is_split and not is_quoted:
            fields.split(piece)
        elif is_quoted:
            fields.add(piece)
        elif piece[0] == "'":
            fields.add(piece[1:-1])
        elif piece.startswith("$'"):
            fields.add(re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), piece[2:-1]))
        elif piece.startswith(('"', '$"')) and len(piece) > 1:
            inner = self._fields(piece.lstrip("$")[1:-1], True)
            is_all = any(mark in piece for mark in ("@]}", "$@", "${@"))
            fields.extend(inner if inner or is_all else [""])
        elif piece.startswith(("<(", ">(")):
            fields.add(unknown(piece))
        else:
            fields.add(piece)

    def _add_value(self, fields: "_Fields", piece: str, is_quoted: bool, is_split: bool) -> None:
        value, is_all = self._value(piece)
        if is_quoted:
            if is_all and isinstance(value, list):
                fields.extend(value)
            else:
                fields.add(" ".join(value) if isinstance(value, list) else value)
        elif not is_split:
            fields.add(" ".join(value) if isinstance(value, list) else value)
        else:
            fields.split(value)

    def _value(self, piece: str) -> tuple[Value, bool]:
        """Return the value of a `$` or backquote substitution, and whether it is a whole list, such as "$@"."""
        if piece.startswith("$((") and piece.endswith("))"):
            return self.arithmetic(piece[3:-2]), False
        if piece.startswith("$("):
            return self._command_output(piece, piece[2:-1]), False
        if piece.startswith("`"):
            return self._command_output(piece, re.sub(r"\\([`$\\])", r"\1", piece[1:-1])), False
        if piece.startswith("${"):
            return self._braced(piece)
        name = piece[1:]
        return self._variable(name, piece), name == "@"

    def _command_output(self, piece: str, command: str) -> str:
        output = self._output(command)
        if output is not None:
            return output.rstrip("\n")
        return unknown(piece)

    def _variable(self, name: str, piece: str) -> Value:
        if name in ALL:
            return list(self._variables.arguments)
        value = self._variables.get(name)
        if isinstance(value, list):
            return value[0] if value else ""
        return unknown(piece) if value is None else value

    def _braced(self, piece: str) -> tuple[Value, bool]:
        match = BRACED.fullmatch(piece[2:-1])
        if match is None:
            return unknown(piece), False
        name, index, operation = match["name"], match["index"], match["operation"]
        is_all = index in ALL or (name in ALL and index is None)
        value = self._element(name, index)
        if match["hash"]:
            return self._length(value, piece, is_all), False
        if operation:
            return self._apply_operation(name, value, operation, piece), is_all
        if value is None:
            return ([] if is_all and name in ALL else unknown(f"${name}" if index is None or is_all else piece)), False
        return value, is_all and index != "*"

    def _element(self, name: str, index: str | None) -> Value | None:
        """Return all entries of an array for index @ or *, one entry for another index, and the first without an index."""
        if name in ALL:
            return list(self._variables.arguments)
        value = self._variables.get(name)
        if index in ALL:
            return words_in(value) if isinstance(value, str) and name in self._variables.preset else value
        if index is None or value is None or isinstance(value, str):
            keyed = None if index is None else self._variables.get(f"{name}[{self.text(index)}]")
            return keyed if keyed is not None or index not in (None, "0") else (value[0] if isinstance(value, list) else value)
        try:
            number = int(self._number(index))
            return value[number] if all(map(is_known, value)) else None
        except (ValueError, IndexError, arithmetic.Unknown):
            return value[0] if index is None and value else None

    def _length(self, value: Value | None, piece: str, is_all: bool) -> str:
        if value is None or not all(map(is_known, [value] if isinstance(value, str) else value)):
            return unknown(piece)
        return str(len(value) if is_all or isinstance(value, str) else len(value[0]))

    def _apply_operation(self, name: str, value: Value | None, operation: str, piece: str) -> Value:
        defaulting = DEFAULTING.fullmatch(operation)
        if defaulting:
            return self._or_default(name, value, defaulting, piece)
        if value is None or not all(map(is_known, [value] if isinstance(value, str) else value)):
            return unknown(piece)
        entries = [value] if isinstance(value, str) else value
        sliced = SLICE.fullmatch(operation)
        try:
            if sliced and isinstance(value, list):
                # bash counts the program as ${@:0:1}, so the first argument has index 1.
                return self._slice([unknown("$0"), *value] if name in ALL else value, sliced)
            changed = ["".join(self._slice(entry, sliced)) if sliced else self._edit(entry, operation) for entry in entries]
        except (ValueError, arithmetic.Unknown):
            return unknown(piece)
        return changed[0] if isinstance(value, str) else changed

    def _or_default(self, name: str, value: Value | None, match: re.Match[str], piece: str) -> Value:
        is_empty = value is None or (match[1] == ":" and not value)
        if match[2] == "+":
            return "" if is_empty else unknown(piece) if value and not is_known("".join(value)) else self.text(match[3])
        if not is_empty:
            return value or ""
        if match[2] == "?":
            return unknown(f"${name}")
        default = self.text(match[3])
        if match[2] == "=":
            self._variables.assign(name, default)
        return default

    def _slice(self, value: Value, match: re.Match[str]) -> Value:
        start = int(self._number(match[1]))
        start = max(start + len(value), 0) if start < 0 else start
        if match[2] is None:
            return value[start:]
        length = int(self._number(match[2]))
        return value[start : start + length] if length >= 0 else value[start:length]

    def _number(self, text: str) -> str:
        value = self.arithmetic(text)
        if not is_known(value):
            raise ValueError(text)
        return value

    def _edit(self, value: str, operation: str) -> str:
        """Apply ${NAME#pattern}, ${NAME%pattern}, ${NAME/pattern/text}, ${NAME^^} or ${NAME,,} to one value."""
        if operation in CASES:
            return CASES[operation](value)
        if len(value) > LONGEST_MATCHED:
            raise ValueError("too long to be matched")
        if operation.startswith(("#", "%")):
            is_longest = operation[:2] in ("##", "%%")
            return _strip_pattern(value, self._pattern(operation[1 + is_longest :]), operation[0] == "#", is_longest)
        if operation.startswith("/"):
            return self._substitute(value, operation[1:])
        raise ValueError(operation)

    def _pattern(self, source: str) -> str:
        """Expand a glob. Wildcards in quotes are escaped."""
        pieces = re.split(r"(\\.|'[^']*'|\"[^\"]*\")", source)
        quoted = "'\"\\"
        return "".join(re.sub(r"([*?[])", r"[\1]", self.text(p)) if p[:1] and p[0] in quoted else self.text(p) for p in pieces)

    def _substitute(self, value: str, operation: str) -> str:
        is_global, anchor = operation.startswith("/"), operation[:1] if operation[:1] in ("#", "%") else ""
        body = operation[1:] if is_global or anchor else operation
        match = re.match(r"((?:\\.|'[^']*'|\"[^\"]*\"|[^/\\])*)(?:/(.*))?", body, re.DOTALL)
        pattern, replacement = self._pattern(match[1] if match else body), self.text(match[2] or "") if match else ""
        if not is_known(pattern + replacement):
            raise ValueError(operation)
        if anchor:
            return _replace_at_end(value, pattern, replacement, anchor == "#")
        if not value:
            return replacement if pattern and _matches(value, pattern) else value
        if not WILD.search(pattern):
            return value.replace(pattern, replacement, -1 if is_global else 1) if pattern else value
        if len(value) > LONGEST_SEARCHED:
            raise ValueError("too long to be searched")
        parts, position = [], 0
        while position < len(value):
            length = next(
                (n for n in range(len(value) - position, 0, -1) if _matches(value[position : position + n], pattern)), 0
            )
            parts.append(replacement if length else value[position])
            position += length or 1
            if length and not is_global:
                break
        return "".join(parts) + value[position:]

    def arithmetic(self, source: str) -> str:
        """Return the value of an arithmetic expression, or the expression as an unknown part."""
        expression = self.text(source)
        names = names_behind([expression])
        try:
            if not is_known(expression):
                raise arithmetic.Unknown(*names)
            return str(arithmetic.evaluate(expression, self._read, self._variables.assign))
        except arithmetic.Unknown as error:
            return unknown(f"$(({_with_dollars(written(expression), error.names)}))")
        except ValueError:
            return unknown(f"$(({written(expression)}))")

    def _read(self, name: str) -> str | None:
        base, _, index = name.partition("[")
        value = self._element(base, index.rstrip("]") if index else None)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, str) and not is_known(value):
            raise arithmetic.Unknown(*names_behind([value]))
        return value if isinstance(value, str) else None


class _Fields:
    """The fields of one word, built piece by piece. Adjacent pieces join into one field until a blank ends it."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._is_open = False

    def add(self, text: str) -> None:
        if self._is_open:
            self.words[-1] += text
        else:
            self.words.append(text)
            self._is_open = True

    def extend(self, words: Sequence[str]) -> None:
        for number, word in enumerate(words):
            self._is_open = self._is_open and number == 0
            self.add(word)

    def split(self, value: Value) -> None:
        words = words_in(value)
        text = value if isinstance(value, str) else ""
        if text[:1].isspace():
            self._is_open = False
        self.extend(words)
        if words and text[-1:].isspace():
            self._is_open = False


def _unescaped(piece: str, is_quoted: bool) -> str:
    if piece[1:] == "\n":
        return ""
    return piece if is_quoted and piece[1:] not in ("$", "`", '"', "\\") else piece[1:]


def _matches(text: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(text, pattern)


def _strip_pattern(value: str, pattern: str, is_front: bool, is_longest: bool) -> str:
    lengths = range(len(value), -1, -1) if is_longest else range(len(value) + 1)
    for length in lengths:
        part = value[:length] if is_front else value[len(value) - length :]
        if _matches(part, pattern):
            return value[length:] if is_front else value[: len(value) - length]
    return value


def _with_dollars(expression: str, names: Sequence[str]) -> str:
    """Put a dollar sign before `names` in `expression`, because arithmetic may name variables without it."""
    bare = "|".join(map(re.escape, names)) or "(?!)"
    return re.sub(rf"(?<![\w$])({bare})(?!\w)", r"$\1", expression)


def _replace_at_end(value: str, pattern: str, replacement: str, is_front: bool) -> str:
    for length in range(len(value), -1, -1):
        part = value[:length] if is_front else value[len(value) - length :]
        if _matches(part, pattern):
            return replacement + value[length:] if is_front else value[: len(value) - length] + replacement
    return value
