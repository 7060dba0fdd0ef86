"""Read a shell script without running it: the commands that a run may start, each with its words.

Scripts around Megatron-LM keep its options in variables: `: "${NUM_LAYERS:=36}"`, `ARGS=(--num-layers $NUM_LAYERS)`, then
`pretrain_gpt.py "${ARGS[@]}"`. Assignments, arithmetic, functions, loops and conditions are followed if their values are known;
of an unknown condition, both branches are followed. Commands in a text (`bash -c "..."`) are followed as a separate script. No
command is run, so its output, and the variables of a sourced file, are unknown.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from lt_train.importers.shell.assignment import ASSIGNMENT, assign
from lt_train.importers.shell.command import ShellCommand
from lt_train.importers.shell.conditions import decide
from lt_train.importers.shell.expansion import Expansion
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
from lt_train.importers.shell.output import printed
from lt_train.importers.shell.programs import PRINTING, SHELLS, STARTING, is_test, scripts_in
from lt_train.importers.shell.syntax import NAME, parse
from lt_train.importers.shell.unknown import MARKS, is_known, unknown, written
from lt_train.importers.shell.variables import Variables, names_behind

CHANGED = re.compile(rf"({NAME})\s*(?:\+\+|--|[-+*/%&|^]?=(?!=))|(?:\+\+|--)({NAME})")
DECLARING = ("export", "declare", "local", "readonly", "typeset")
MOST_STEPS = 20_000
MOST_ROUNDS = 64
DEEPEST = 25


def commands(text: str, given: Mapping[str, str] | None = None) -> list[ShellCommand]:
    """Each command that may be run; values in `given` come before the script's own.

    Raises ValueError for what bash would refuse, and for a script that is too long to follow.
    """
    script = _Script(Variables.of(given or {}))
    try:
        script.run(parse(MARKS.sub("", text.replace("\r\n", "\n"))))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return script.found


class _Script:
    """`status` of the last command is None if only a run decides it; `causes` are the variables in the last such test."""

    def __init__(self, variables: Variables):
        self.found: list[ShellCommand] = []
        self._variables = variables
        self._functions: dict[str, list[Node]] = {}
        self._sourced: list[str] = []
        self._causes: list[str] = []
        self._around: list[str] = []
        self._steps = self._depth = self._branches = 0
        self._line: int | None = None

    @property
    def _expansion(self) -> Expansion:
        return Expansion(self._variables, lambda text: printed(text, self._expansion))

    def run(self, nodes: Iterable[Node]) -> bool | None:
        status: bool | None = True
        for node in nodes:
            if self._variables.is_left:
                break
            status = self._run(node)
        return status

    def _run(self, node: Node) -> bool | None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            raise ValueError("the script is too long to follow")
        match node:
            case Simple():
                return self._simple(node)
            case Test():
                return self._tested(self._pattern_words(node.words), True)
            case Arithmetic():
                return self._computed(node.expression)
            case Pipeline():
                return self._pipeline(node)
            case Chain():
                return self._chain(node)
            case If():
                return self._if(node)
            case For():
                return self._for(node)
            case While():
                return self._while(node)
            case Case():
                return self._case(node)
            case Group():
                return self._apart(node.body) if node.is_subshell else self.run(node.body)
            case Function():
                self._functions[node.name] = node.body
                return True

    def _apart(self, nodes: Iterable[Node]) -> bool | None:
        """Run `nodes` in a subshell: its variables are lost."""
        before, self._variables = self._variables, self._variables.copy()
        status = self.run(nodes)
        self._variables = before
        return status

    def _branch(self, nodes: Iterable[Node], causes: Sequence[str]) -> Variables:
        """Return the variables after `nodes`."""
        before, self._variables = self._variables, self._variables.copy()
        around, self._around = self._around, [*self._around, *causes]
        self._branches += 1
        self.run(nodes)
        self._branches -= 1
        self._around = around
        branch, self._variables = self._variables, before
        return branch

    def _perhaps(self, bodies: Iterable[Iterable[Node]], causes: Sequence[str]) -> None:
        """One of `bodies` is run, or none."""
        branches = [self._branch(body, causes) for body in bodies]
        self._variables.merge([*branches, self._variables.copy()], causes)

    def _pipeline(self, node: Pipeline) -> bool | None:
        if len(node.parts) > 1:
            for part in node.parts:
                self._apart([part])
            return None
        status = self._run(node.parts[0])
        return None if status is None else status is not node.is_negated

    def _chain(self, node: Chain) -> bool | None:
        status: bool | None = True
        for sign, part in node.parts:
            wanted = sign != "||"
            if status is None:
                self._perhaps([[part]], self._causes)
            elif status is wanted:
                self._causes = []
                status = self._run(part)
                if status is None and not is_test(part):
                    status = True
            if self._variables.is_left:
                return status
        return status

    def _if(self, node: If) -> bool | None:
        branches: list[Variables] = []
        causes: list[str] = []
        for condition, body in [*node.clauses, ([], node.otherwise)]:
            self._causes = []
            status = self.run(condition)
            if status and not branches:
                return self.run(body)
            if status is not False:
                causes = list(dict.fromkeys([*causes, *self._causes]))
                branches.append(self._branch(body, causes))
            if status:
                break
        self._variables.merge(branches, causes)
        return True

    def _for(self, node: For) -> bool | None:
        words = list(self._variables.arguments) if node.words is None else self._expansion.words(node.words)
        if len(words) > MOST_ROUNDS or not all(map(is_known, words)) or any(mark in word for word in words for mark in "*{"):
            self._variables.assign(node.name, unknown(f"${node.name}"))
            self._perhaps([node.body], names_behind(words))
            return True
        for word in words:
            self._variables.assign(node.name, word)
            self.run(node.body)
        return True

    def _while(self, node: While) -> bool | None:
        """Follow a loop. The script has no arguments, so a loop over them has no rounds."""
        for _ in range(MOST_ROUNDS * 4):
            self._causes = []
            self._variables.values["#"] = str(len(self._variables.arguments))
            status = self.run(node.condition)
            self._variables.values.pop("#", None)
            if status is None:
                self._perhaps([node.body], self._causes)
                return True
            if status is node.is_until or self._variables.is_left:
                return True
            self.run(node.body)
        raise ValueError("a loop that is too long to follow")

    def _case(self, node: Case) -> bool | None:
        word = self._expansion.text(node.word)
        if not is_known(word):
            self._perhaps([body for _, body in node.clauses], names_behind([word]))
            return True
        for patterns, body in node.clauses:
            if any(decide([word, "==", self._pattern(pattern)], True) for pattern in patterns):
                return self.run(body)
        return True

    def _pattern(self, source: str) -> str:
        """Return a glob pattern; quoted characters match themselves."""
        text = self._expansion.text(source)
        return re.sub(r"([*?[])", r"[\1]", text) if source[:1] in "'\"\\" and source else text

    def _pattern_words(self, sources: Sequence[str]) -> list[str]:
        is_pattern = [False, *(source in ("==", "=", "!=") for source in sources)]
        pairs = zip(sources, is_pattern, strict=False)
        return [self._pattern(source) if pattern else self._expansion.text(source) for source, pattern in pairs]

    def _tested(self, words: Sequence[str], is_extended: bool) -> bool | None:
        status = decide(words, is_extended)
        if status is None:
            self._causes = [*self._causes, *names_behind(words)]
        return status

    def _computed(self, expression: str) -> bool | None:
        """(( ... )) and let."""
        value = self._expansion.arithmetic(expression)
        if is_known(value):
            return value != "0"
        self._causes = [*self._causes, *names_behind([value])]
        for names in CHANGED.findall(written(expression)):
            name = next(filter(None, names))
            self._variables.assign(name, unknown(f"${name}"))
        return None

    def _simple(self, node: Simple) -> bool | None:
        count = next((place for place, word in enumerate(node.words) if not ASSIGNMENT.fullmatch(word)), len(node.words))
        if count == len(node.words):
            for word in node.words:
                self._assign(word)
            return True
        rest = node.words[count:]
        if rest[0] in DECLARING:
            for word in rest[1:]:
                self._assign(word)
            return True
        builtin = getattr(self, f"_do_{BUILTINS[rest[0]]}", None) if rest[0] in BUILTINS else None
        if builtin is not None:
            status: bool | None = builtin(rest[1:], node)
            return status
        before = self._variables
        words = self._expansion.words(rest)
        if count:
            self._variables = self._variables.copy()
            for word in node.words[:count]:
                self._assign(word)
        status = self._called(words, node) if words else True
        self._variables = before
        return status

    def _assign(self, source: str) -> None:
        assign(source, self._variables, self._expansion)

    def _called(self, words: list[str], node: Simple) -> bool | None:
        program = words[0].rpartition("/")[2]
        if program in self._functions:
            return self._function(program, words[1:])
        if any(SHELLS.fullmatch(word) for word in words):
            for document in node.documents:
                self._nested(self._document(document), node.line)
        elif any(STARTING in document.text for document in node.documents):
            self.found.append(self._command(words, node.line, is_text=True))
        if program in PRINTING:
            return None
        scripts = scripts_in(words)
        for script in scripts:
            self._nested(script, node.line)
        if not scripts:
            self.found.append(self._command(words, node.line))
        return None

    def _command(self, words: Sequence[str], line: int, is_text: bool = False) -> ShellCommand:
        variables = self._variables
        starts = any(STARTING in word for word in words)
        choices = {name: [*map(written, choice)] for name, choice in variables.choices.items()} if starts else {}
        place = self._line or line
        return ShellCommand(
            [*map(written, words)], choices, place, dict(variables.causes), tuple(self._sourced), tuple(self._around), is_text
        )

    def _function(self, name: str, arguments: Sequence[str]) -> bool | None:
        self._deeper()
        before, self._variables.arguments = self._variables.arguments, tuple(arguments)
        status = self.run(self._functions[name])
        self._variables.arguments = before
        # `return` leaves the function alone.
        self._variables.is_left = False
        self._depth -= 1
        return status

    def _nested(self, text: str, line: int) -> None:
        """A script within a word of a command."""
        self._deeper()
        before, self._line = self._line, self._line or line
        self._apart(parse(text))
        self._line = before
        self._depth -= 1

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError("nested too deeply")

    def _document(self, document: HereDocument) -> str:
        return self._expansion.quoted(document.text) if document.is_expanded else document.text

    def _do_nothing(self, words: Sequence[str], node: Simple) -> bool | None:
        self._expansion.words(words)
        return True

    def _do_fail(self, words: Sequence[str], node: Simple) -> bool | None:
        return False

    def _do_test(self, words: Sequence[str], node: Simple) -> bool | None:
        expanded = self._expansion.words(words)
        return self._tested(expanded[:-1] if expanded[-1:] == ["]"] else expanded, False)

    def _do_let(self, words: Sequence[str], node: Simple) -> bool | None:
        status: bool | None = True
        for word in self._expansion.words(words):
            status = self._computed(word)
        return status

    def _do_unset(self, words: Sequence[str], node: Simple) -> bool | None:
        for name in self._expansion.words(words):
            self._variables.remove(name)
        return True

    def _do_set(self, words: Sequence[str], node: Simple) -> bool | None:
        expanded = self._expansion.words(words)
        if "--" in expanded:
            self._variables.arguments = tuple(expanded[expanded.index("--") + 1 :])
        return True

    def _do_shift(self, words: Sequence[str], node: Simple) -> bool | None:
        count = int(words[0]) if words and words[0].isdigit() else 1
        self._variables.arguments = self._variables.arguments[count:]
        return True

    def _do_leave(self, words: Sequence[str], node: Simple) -> bool | None:
        """A check of the arguments, which a script is read without, does not end it."""
        is_check = node.words[0] == "exit" and words[:1] not in ([], ["0"]) and not self._branches
        self._variables.is_left = not is_check
        return True

    def _do_eval(self, words: Sequence[str], node: Simple) -> bool | None:
        self._deeper()
        status = self.run(parse(" ".join(self._expansion.words(words))))
        self._depth -= 1
        return status

    def _do_source(self, words: Sequence[str], node: Simple) -> bool | None:
        self._sourced.extend(map(written, self._expansion.words(words[:1])))
        return True

    def _do_read(self, words: Sequence[str], node: Simple) -> bool | None:
        names = [word for word in words if re.fullmatch(NAME, word)]
        for name in names:
            self._variables.assign(name, unknown(f"${name}"))
        if names and node.documents and any(word.startswith("-") and "d" in word for word in words):
            self._variables.assign(names[-1], self._document(node.documents[0]).strip())
        return None

    def _do_run(self, words: Sequence[str], node: Simple) -> bool | None:
        """exec, and what else stands before a command."""
        return self._simple(dataclasses.replace(node, words=list(words))) if words else True


BUILTINS = {
    **dict.fromkeys((":", "true"), "nothing"),
    **dict.fromkeys(("false", "getopts"), "fail"),
    **dict.fromkeys(("[", "test"), "test"),
    **dict.fromkeys(("exit", "return"), "leave"),
    **dict.fromkeys(("source", "."), "source"),
    **dict.fromkeys(("read", "mapfile", "readarray"), "read"),
    **dict.fromkeys(("exec", "nohup"), "run"),
    **{name: name for name in ("let", "unset", "set", "shift", "eval")},
}
