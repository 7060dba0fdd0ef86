"""List the commands that a shell script may start, without executing the script.

Scripts around Megatron-LM keep its options in variables: `: "${NUM_LAYERS:=36}"`, `ARGS=(--num-layers $NUM_LAYERS)`, then
`pretrain_gpt.py "${ARGS[@]}"`. The interpreter evaluates assignments, arithmetic, functions, loops and conditions
with known values. If the value of a condition is unknown, it follows both branches. It parses the text of a nested shell
(`bash -c "..."`) as another script. It executes no command, so the output of commands and the variables of sourced files are
unknown.
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
from lt_train.importers.shell.output import command_output
from lt_train.importers.shell.programs import PRINTING, SHELLS, STARTING, find_scripts, is_test
from lt_train.importers.shell.syntax import NAME, parse
from lt_train.importers.shell.unknown import MARKS, is_known, unknown, written
from lt_train.importers.shell.variables import Variables, names_behind

CHANGED = re.compile(rf"({NAME})\s*(?:\+\+|--|[-+*/%&|^]?=(?!=))|(?:\+\+|--)({NAME})")
DECLARING = ("export", "declare", "local", "readonly", "typeset")
MOST_STEPS = 20_000
MOST_ROUNDS = 64
DEEPEST = 25


def commands(text: str, presets: Mapping[str, str] | None = None) -> list[ShellCommand]:
    """List each command that the script may run. `presets` override the script's assignments.

    Raises ValueError for a syntax error, and for a script that exceeds the limits on steps and nesting.
    """
    script = _Script(Variables.from_presets(presets or {}))
    try:
        script.run(parse(MARKS.sub("", text.replace("\r\n", "\n"))))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return script.commands


class _Script:
    """An interpreter of the syntax tree that records commands instead of executing them.

    Methods that run a node return its exit status as True or False, or None if the status is unknown. `_causes` holds the
    variables that the last undecided test reads, `_guards` the variables of the undecided conditions around the current node.
    """

    def __init__(self, variables: Variables):
        self.commands: list[ShellCommand] = []
        self._variables = variables
        self._functions: dict[str, list[Node]] = {}
        self._sourced: list[str] = []
        self._causes: list[str] = []
        self._guards: list[str] = []
        self._steps = self._depth = self._branches = 0
        self._line: int | None = None

    @property
    def _expansion(self) -> Expansion:
        return Expansion(self._variables, lambda text: command_output(text, self._expansion))

    def run(self, nodes: Iterable[Node]) -> bool | None:
        status: bool | None = True
        for node in nodes:
            if self._variables.has_exited:
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
                return self._run_test(self._pattern_words(node.words), True)
            case Arithmetic():
                return self._run_arithmetic(node.expression)
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
                return self._run_subshell(node.body) if node.is_subshell else self.run(node.body)
            case Function():
                self._functions[node.name] = node.body
                return True

    def _run_subshell(self, nodes: Iterable[Node]) -> bool | None:
        """Run `nodes` on a copy of the variables, because a subshell cannot change the variables of its parent."""
        before, self._variables = self._variables, self._variables.copy()
        status = self.run(nodes)
        self._variables = before
        return status

    def _branch(self, nodes: Iterable[Node], causes: Sequence[str]) -> Variables:
        """Run `nodes` on a copy of the variables and return the copy. Conditions inside depend on `causes`, too."""
        before, self._variables = self._variables, self._variables.copy()
        saved_guards, self._guards = self._guards, [*self._guards, *causes]
        self._branches += 1
        self.run(nodes)
        self._branches -= 1
        self._guards = saved_guards
        branch, self._variables = self._variables, before
        return branch

    def _run_alternatives(self, bodies: Iterable[Iterable[Node]], causes: Sequence[str]) -> None:
        """Run each of `bodies` as a branch that may be taken, and merge the variables with the case that none is."""
        branches = [self._branch(body, causes) for body in bodies]
        self._variables.merge([*branches, self._variables.copy()], causes)

    def _pipeline(self, node: Pipeline) -> bool | None:
        if len(node.parts) > 1:
            for part in node.parts:
                self._run_subshell([part])
            return None
        status = self._run(node.parts[0])
        return None if status is None else status is not node.is_negated

    def _chain(self, node: Chain) -> bool | None:
        status: bool | None = True
        for sign, part in node.parts:
            required_status = sign != "||"
            if status is None:
                self._run_alternatives([[part]], self._causes)
            elif status is required_status:
                self._causes = []
                status = self._run(part)
                if status is None and not is_test(part):
                    status = True
            if self._variables.has_exited:
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
            self._run_alternatives([node.body], names_behind(words))
            return True
        for word in words:
            self._variables.assign(node.name, word)
            self.run(node.body)
        return True

    def _while(self, node: While) -> bool | None:
        """Run a while or until loop. The script has no arguments here, so a loop over its arguments ends at once."""
        for _ in range(MOST_ROUNDS * 4):
            self._causes = []
            self._variables.values["#"] = str(len(self._variables.arguments))
            status = self.run(node.condition)
            self._variables.values.pop("#", None)
            if status is None:
                self._run_alternatives([node.body], self._causes)
                return True
            if status is node.is_until or self._variables.has_exited:
                return True
            self.run(node.body)
        raise ValueError("a loop that is too long to follow")

    def _case(self, node: Case) -> bool | None:
        word = self._expansion.text(node.word)
        if not is_known(word):
            self._run_alternatives([body for _, body in node.clauses], names_behind([word]))
            return True
        for patterns, body in node.clauses:
            if any(decide([word, "==", self._pattern(pattern)], True) for pattern in patterns):
                return self.run(body)
        return True

    def _pattern(self, source: str) -> str:
        """Expand a pattern. The wildcards of a quoted pattern are escaped, because bash matches them literally."""
        text = self._expansion.text(source)
        return re.sub(r"([*?[])", r"[\1]", text) if source[:1] in "'\"\\" and source else text

    def _pattern_words(self, sources: Sequence[str]) -> list[str]:
        is_pattern = [False, *(source in ("==", "=", "!=") for source in sources)]
        pairs = zip(sources, is_pattern, strict=False)
        return [self._pattern(source) if pattern else self._expansion.text(source) for source, pattern in pairs]

    def _run_test(self, words: Sequence[str], is_extended: bool) -> bool | None:
        status = decide(words, is_extended)
        if status is None:
            self._causes = [*self._causes, *names_behind(words)]
        return status

    def _run_arithmetic(self, expression: str) -> bool | None:
        """Evaluate `(( ... ))` or `let`. If the value is unknown, every variable that the expression assigns becomes unknown."""
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
        command_words = node.words[count:]
        if command_words[0] in DECLARING:
            for word in command_words[1:]:
                self._assign(word)
            return True
        builtin = getattr(self, f"_do_{BUILTINS[command_words[0]]}", None) if command_words[0] in BUILTINS else None
        if builtin is not None:
            status: bool | None = builtin(command_words[1:], node)
            return status
        before = self._variables
        words = self._expansion.words(command_words)
        if count:
            self._variables = self._variables.copy()
            for word in node.words[:count]:
                self._assign(word)
        status = self._run_program(words, node) if words else True
        self._variables = before
        return status

    def _assign(self, source: str) -> None:
        assign(source, self._variables, self._expansion)

    def _run_program(self, words: list[str], node: Simple) -> bool | None:
        program = words[0].rpartition("/")[2]
        if program in self._functions:
            return self._call_function(program, words[1:])
        if any(SHELLS.fullmatch(word) for word in words):
            for document in node.documents:
                self._run_script(self._document(document), node.line)
        elif any(STARTING in document.text for document in node.documents):
            self.commands.append(self._command(words, node.line, is_text=True))
        if program in PRINTING:
            return None
        scripts = find_scripts(words)
        for script in scripts:
            self._run_script(script, node.line)
        if not scripts:
            self.commands.append(self._command(words, node.line))
        return None

    def _command(self, words: Sequence[str], line: int, is_text: bool = False) -> ShellCommand:
        variables = self._variables
        starts = any(STARTING in word for word in words)
        choices = {name: [*map(written, choice)] for name, choice in variables.choices.items()} if starts else {}
        place = self._line or line
        return ShellCommand(
            [*map(written, words)], choices, place, dict(variables.causes), tuple(self._sourced), tuple(self._guards), is_text
        )

    def _call_function(self, name: str, arguments: Sequence[str]) -> bool | None:
        self._enter()
        before, self._variables.arguments = self._variables.arguments, tuple(arguments)
        status = self.run(self._functions[name])
        self._variables.arguments = before
        # `return` ends the function, not the script.
        self._variables.has_exited = False
        self._depth -= 1
        return status

    def _run_script(self, text: str, line: int) -> None:
        """Run the script that a word of a command contains, such as the argument of `bash -c`."""
        self._enter()
        before, self._line = self._line, self._line or line
        self._run_subshell(parse(text))
        self._line = before
        self._depth -= 1

    def _enter(self) -> None:
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
        return self._run_test(expanded[:-1] if expanded[-1:] == ["]"] else expanded, False)

    def _do_let(self, words: Sequence[str], node: Simple) -> bool | None:
        status: bool | None = True
        for word in self._expansion.words(words):
            status = self._run_arithmetic(word)
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

    def _do_exit(self, words: Sequence[str], node: Simple) -> bool | None:
        """End the script or function. Outside of undecided branches, a failing `exit` is ignored:
        it checks the script's arguments, which are missing here."""
        is_check = node.words[0] == "exit" and words[:1] not in ([], ["0"]) and not self._branches
        self._variables.has_exited = not is_check
        return True

    def _do_eval(self, words: Sequence[str], node: Simple) -> bool | None:
        self._enter()
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
        """Run the command after `exec` or `nohup`."""
        return self._simple(dataclasses.replace(node, words=list(words))) if words else True


BUILTINS = {
    **dict.fromkeys((":", "true"), "nothing"),
    **dict.fromkeys(("false", "getopts"), "fail"),
    **dict.fromkeys(("[", "test"), "test"),
    **dict.fromkeys(("exit", "return"), "exit"),
    **dict.fromkeys(("source", "."), "source"),
    **dict.fromkeys(("read", "mapfile", "readarray"), "read"),
    **dict.fromkeys(("exec", "nohup"), "run"),
    **{name: name for name in ("let", "unset", "set", "shift", "eval")},
}
