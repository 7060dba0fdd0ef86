"""Parse the part of the shell grammar that scripts around trainers use into a tree of commands.

Words keep their source text with quotes. The interpreter expands them, because expansion needs the variables. Like bash, the
parser raises an error for an unclosed quote, parenthesis or `if`.
"""

import bisect
import re

from lt_train.importers.shell.nodes import (
    Arithmetic,
    Case,
    Chain,
    For,
    Function,
    Group,
    HereDocument,
    If,
    Node,
    Pipeline,
    Simple,
    Test,
    While,
)
from lt_train.importers.shell.quoting import end_of, end_of_line, end_of_quoted
from lt_train.importers.shell.unknown import OPENING

NAME = r"[A-Za-z_]\w*"
BLANK = re.compile(r"(?:[ \t]|\\\n)+")
REDIRECTION = re.compile(r"(?:\d*|\{\w+\})(?P<sign><<<|<<-?|<>|>>|>&|<&|>\||>|<)(?!\()|(?P<both>&>>?)")
FUNCTION = re.compile(r"(?:function[ \t]+([\w:.-]+)[ \t]*(?:\([ \t]*\))?|([\w:.-]+)[ \t]*\([ \t]*\))\s*(?=[{(])")
ARRAY_AHEAD = re.compile(rf"{NAME}(\[[^\]]*\])?\+?=$")
# A placeholder that the reader of a template fills in: DATA=<PATH TO THE DATA>.
PLACEHOLDER = re.compile(r"<[A-Za-z](?:[\w ./-]{0,80}[\w./-])?>(?![>(])")
RESERVED = frozenset(("then", "else", "elif", "fi", "do", "done", "esac", "}"))
QUOTING = "\\'\"`$" + OPENING
METACHARACTERS = " \t\n;&|<>()"
DEEPEST = 60


def parse(text: str) -> list[Node]:
    """Parse a script into its commands. Raises ValueError with the line of a syntax error."""
    parser = _Parser(text)
    nodes = parser.commands()
    if parser.position < len(text):
        raise parser.error(f"{parser.ahead()} is out of place")
    return nodes


def array_words(text: str) -> list[str]:
    """Split the text between the parentheses of an array assignment into words."""
    parser = _Parser(text)
    words: list[str] = []
    while True:
        parser.newlines()
        if parser.position >= len(text):
            return words
        word = parser.word()
        if not word:
            raise parser.error(f"{parser.ahead()} is out of place in an array")
        words.append(word)


class _Parser:
    def __init__(self, text: str):
        self.text = text
        self.position = 0
        self._pending: list[tuple[str, bool, HereDocument]] = []
        self._newlines = [newline.start() for newline in re.finditer("\n", text)]
        self._depth = 0

    def error(self, message: str) -> ValueError:
        return ValueError(f"line {self._line()}: {message}")

    def ahead(self) -> str:
        return self.text[self.position : self.position + 20].split("\n")[0] or "the end"

    def _line(self) -> int:
        return bisect.bisect_left(self._newlines, self.position) + 1

    def _blanks(self) -> None:
        match = BLANK.match(self.text, self.position)
        self.position = match.end() if match else self.position
        if self.text.startswith("#", self.position):
            self.position = end_of_line(self.text, self.position)

    def newlines(self) -> None:
        self._blanks()
        while self.text.startswith("\n", self.position):
            self.position += 1
            self._here_documents()
            self._blanks()

    def _here_documents(self) -> None:
        for delimiter, is_indented, document in self._pending:
            lines = []
            while self.position < len(self.text):
                end = end_of_line(self.text, self.position)
                line = self.text[self.position : end]
                self.position = min(end + 1, len(self.text))
                line = line.lstrip("\t") if is_indented else line
                if line == delimiter:
                    break
                lines.append(line)
            document.text = "\n".join(lines)
        self._pending = []

    def _next(self, sign: str) -> bool:
        self._blanks()
        is_next = self.text.startswith(sign, self.position)
        self.position += len(sign) if is_next else 0
        return is_next

    def _peek(self) -> str:
        """Return the word at the position without consuming it."""
        self._blanks()
        end = self.position
        while end < len(self.text) and self.text[end] not in METACHARACTERS + "\"'$`\\":
            end += 1
        return self.text[self.position : end]

    def _keyword(self, name: str) -> bool:
        self.newlines()
        is_next = self._peek() == name
        self.position += len(name) if is_next else 0
        return is_next

    def _expect(self, name: str) -> None:
        while self._next(";"):
            pass
        if not self._keyword(name):
            raise self.error(f"{name} is missing before {self.ahead()}")

    def commands(self) -> list[Node]:
        """Parse commands up to the word or sign that closes the surrounding construct."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise self.error("nested too deeply")
        nodes: list[Node] = []
        while True:
            self.newlines()
            if self.position >= len(self.text) or self.text[self.position] in ");&" or self._peek() in RESERVED:
                if self.text.startswith("&", self.position) and not self.text.startswith("&&", self.position) and nodes:
                    self.position += 1
                    continue
                if self.text.startswith(";", self.position) and not self.text.startswith(";;", self.position) and nodes:
                    self.position += 1
                    continue
                self._depth -= 1
                return nodes
            nodes.append(self._chain())

    def _chain(self) -> Node:
        parts: list[tuple[str, Node]] = [("", self._pipeline())]
        while True:
            sign = "&&" if self._next("&&") else "||" if self._next("||") else ""
            if not sign:
                return Chain(parts) if len(parts) > 1 else parts[0][1]
            self.newlines()
            parts.append((sign, self._pipeline()))

    def _pipeline(self) -> Node:
        is_negated = False
        while self._peek() in ("!", "time"):
            is_negated ^= self._peek() == "!"
            self.position += len(self._peek())
        parts = [self._command()]
        while not self._follows("||") and (self._next("|&") or self._next("|")):
            self.newlines()
            parts.append(self._command())
        return Pipeline(parts, is_negated) if is_negated or len(parts) > 1 else parts[0]

    def _follows(self, sign: str) -> bool:
        self._blanks()
        return self.text.startswith(sign, self.position)

    def _command(self) -> Node:
        self._blanks()
        function = FUNCTION.match(self.text, self.position)
        if function and (function[1] or function[2]) not in RESERVED and not ARRAY_AHEAD.match(function[0]):
            self.position = function.end()
            body = self._command()
            return Function(function[1] or function[2], [body])
        node = self._compound()
        if node is None:
            return self._simple()
        self._redirections()
        return node

    def _compound(self) -> Node | None:
        if self.text.startswith("((", self.position):
            expression = self._arithmetic()
            if expression is not None:
                return Arithmetic(expression)
        if self._next("("):
            return Group(self._closed(")"), True)
        word = self._peek()
        kinds = {"if": self._if, "for": self._for, "select": self._for, "case": self._case, "[[": self._test}
        if word in kinds:
            self.position += len(word)
            return kinds[word]()
        if word == "{":
            self.position += 1
            return Group(self._closed("}"), False)
        if word in ("while", "until"):
            self.position += len(word)
            condition = self.commands()
            return While(condition, word == "until", self._body())
        return None

    def _closed(self, closing: str) -> list[Node]:
        body = self.commands()
        if not self._next(closing):
            raise self.error(f"{closing} is missing before {self.ahead()}")
        return body

    def _arithmetic(self) -> str | None:
        """Parse `((expression))`. Returns None if the parentheses open two nested subshells instead."""
        end = self._end_of(self.position + 2, ")")
        if not self.text.startswith(")", end):
            return None
        expression = self.text[self.position + 2 : end - 1]
        self.position = end + 1
        return expression

    def _end_of(self, position: int, closing: str) -> int:
        try:
            return end_of(self.text, position, closing)
        except ValueError as error:
            raise self.error(str(error)) from None

    def _body(self) -> list[Node]:
        self._expect("do")
        body = self.commands()
        self._expect("done")
        return body

    def _if(self) -> Node:
        clauses = []
        otherwise: list[Node] = []
        while True:
            condition = self.commands()
            self._expect("then")
            clauses.append((condition, self.commands()))
            if not self._keyword("elif"):
                break
        if self._keyword("else"):
            otherwise = self.commands()
        self._expect("fi")
        return If(clauses, otherwise)

    def _for(self) -> Node:
        self._blanks()
        if self.text.startswith("((", self.position):
            parts = (self._arithmetic() or "").split(";")
            if len(parts) != 3:
                raise self.error("three parts are needed in for (( ; ; ))")
            while self._next(";"):
                pass
            start, test, step = parts
            loop = While([Arithmetic(test)], False, [*self._body(), Arithmetic(step)])
            return Group([Arithmetic(start), loop], False)
        name = self._peek()
        self.position += len(name)
        words: list[str] | None = None
        if self._keyword("in"):
            words = []
            while word := self.word():
                words.append(word)
        while self._next(";"):
            pass
        return For(name, words, self._body())

    def _case(self) -> Node:
        word = self.word()
        self._expect("in")
        clauses = []
        while not self._keyword("esac"):
            self._next("(")
            patterns = [self.word()]
            while self._next("|"):
                patterns.append(self.word())
            if not self._next(")"):
                raise self.error(f") is missing before {self.ahead()}")
            clauses.append((patterns, self.commands()))
            self.newlines()
            if not any(map(self._next, (";;&", ";;", ";&"))) and self._peek() != "esac":
                raise self.error(f";; is missing before {self.ahead()}")
        return Case(word, clauses)

    def _test(self) -> Node:
        words: list[str] = []
        while True:
            self.newlines()
            sign = next((sign for sign in ("&&", "||", "(", ")", "<", ">") if self.text.startswith(sign, self.position)), None)
            if sign:
                self.position += len(sign)
                words.append(sign)
                continue
            word = self.word(is_pattern=words[-1:] in (["=~"], ["=="], ["="], ["!="]))
            if word == "]]":
                return Test(words)
            if not word:
                raise self.error("]] is missing")
            words.append(word)

    def _redirections(self, simple: Simple | None = None) -> bool:
        """Skip redirections and return whether there was one. The text of a here-document is read after the line ends."""
        self._blanks()
        match = None if PLACEHOLDER.match(self.text, self.position) else REDIRECTION.match(self.text, self.position)
        is_any = match is not None
        while match is not None:
            self.position = match.end()
            target = self.word()
            sign = match["sign"] or match["both"]
            if sign in ("<<", "<<-"):
                quotes = re.compile(r"[\\'\"]")
                document = HereDocument(quotes.search(target) is None)
                self._pending.append((quotes.sub("", target), sign == "<<-", document))
                if simple:
                    simple.documents.append(document)
            elif simple and sign in (">", ">>", ">|") and not match[0][0].isdigit():
                simple.is_written = True
            self._blanks()
            match = REDIRECTION.match(self.text, self.position)
        return is_any

    def _simple(self) -> Node:
        simple = Simple([], self._line(), [])
        start = self.position
        while True:
            if self._redirections(simple):
                continue
            word = self.word()
            if not word:
                break
            simple.words.append(word)
        if self.position == start:
            raise self.error(f"{self.ahead()} is out of place")
        return simple

    def word(self, is_pattern: bool = False) -> str:
        """Return the source of the next word, or "" if none follows."""
        self._blanks()
        start = self.position
        while self.position < len(self.text):
            character = self.text[self.position]
            is_array = character == "(" and ARRAY_AHEAD.match(self.text[start : self.position]) is not None
            if is_array or (is_pattern and character == "("):
                self.position = self._end_of(self.position + 1, ")")
            elif is_pattern and character in "|<>" and not self.text.startswith("||", self.position):
                self.position += 1
            elif character in QUOTING or self.text.startswith(("<(", ">("), self.position):
                try:
                    self.position = end_of_quoted(self.text, self.position)
                except ValueError as error:
                    raise self.error(str(error)) from None
            elif character == "<" and (placeholder := PLACEHOLDER.match(self.text, self.position)):
                self.position = placeholder.end()
            elif character in METACHARACTERS:
                break
            else:
                self.position += 1
        self.position = min(self.position, len(self.text))
        return self.text[start : self.position]
