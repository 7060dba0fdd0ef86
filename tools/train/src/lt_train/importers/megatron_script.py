"""The command of pretrain_gpt.py in a shell script, and which variables it has that only a run of the script would know.

A script may start it twice, with other options. Which of the two is meant is not for lt-train to choose.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from lt_shared.console import BadData
from lt_train.importers.effects import Effect
from lt_train.importers.megatron_flags import decides, effect_of_flag
from lt_train.importers.megatron_words import is_script, parse
from lt_train.importers.shell.command import ShellCommand
from lt_train.importers.shell.script import commands
from lt_train.importers.shell.unknown import needs_shell, variables_in

OTHER_PROGRAM = re.compile(r"(^|/)\w*(pretrain|finetune|train)\w*\.py$")
OF_NEMO = "import the YAML that its --config-name names, with --set KEY=VALUE for what the command line overrides"
# Outside of comments.
STARTED = re.compile(r"^[^#\n]*pretrain_gpt\w*\.py", re.MULTILINE)
COMMAND_LINE = "pass it: lt-train import -- torchrun ... pretrain_gpt.py ..."
WHOLE = re.compile(r"\$\{?\w+\}?|\$\(.*\)|`.*`", re.DOTALL)
# Files that set up Python or the machine, and no options.
OF_ENVIRONMENT = re.compile(r"activate|bashrc|profile|conda|module|lmod|setvars|venv|spack|env|\.rc")


def command_in(text: str, given: Mapping[str, str] | None = None) -> ShellCommand:
    """The command that starts pretrain_gpt.py in a shell script. Raises BadData without one, and where two differ."""
    try:
        found = commands(text, given)
    except ValueError as error:
        raise BadData(f"not a command line: {error}") from None
    run = [command for command in found if not command.is_text]
    starting = [command for command in run if any(map(is_script, command.words))]
    if starting:
        for command in starting[1:]:
            _check_same(starting[0], command)
        return starting[0]
    if not any(command.is_text for command in found) and STARTED.search(text):
        raise BadData("only a run of the script knows the command of pretrain_gpt.py", COMMAND_LINE)
    raise _without(run, [command for command in found if command.is_text])


def _without(run: Iterable[ShellCommand], written: Sequence[ShellCommand]) -> BadData:
    other = next((word for command in run for word in command.words if OTHER_PROGRAM.search(word)), None)
    if other:
        name = other.rpartition("/")[2]
        hint = OF_NEMO if name.startswith("megatron_") else "pass the command line of pretrain_gpt.py, or a configuration file"
        return BadData(f"the script starts {name}, and lt-train imports pretrain_gpt.py", hint)
    if written:
        return BadData(
            f"the script writes the command into another file, on line {written[0].line}", "import that file, or the command line"
        )
    return BadData("no command with pretrain_gpt.py in the script", COMMAND_LINE)


def _check_same(first: ShellCommand, second: ShellCommand) -> None:
    """Raises BadData for two commands that would train different runs."""
    one, other = _deciding(first), _deciding(second)
    different = [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]
    if not different:
        return
    names = ", ".join(key if key.startswith("$") else f"--{key.replace('_', '-')}" for key in different[:3])
    more = f" and {len(different) - 3} others" if len(different) > 3 else ""
    causes = list(dict.fromkeys([*first.around, *second.around]))
    hint = f"what decides it: {' '.join(f'--set {name}=VALUE' for name in causes)}" if causes else COMMAND_LINE
    raise BadData(f"lines {first.line} and {second.line} start pretrain_gpt.py with different options: {names}{more}", hint)


def _deciding(command: ShellCommand) -> dict[str, list[str]]:
    place = next(index for index, word in enumerate(command.words) if is_script(word))
    values = parse(command.words[place + 1 :])
    return {key: words for key, words in values.items() if needs_shell(key) or decides(key, words) or _may_matter(key, words)}


def _may_matter(key: str, words: Sequence[str]) -> bool:
    return effect_of_flag(key, words) is Effect.MODEL


def asked_for(values: Mapping[str, Sequence[str]], command: ShellCommand) -> list[str]:
    """Return the unknown parts of `values`: the variables' names, or a substitution without a name."""
    found: dict[str, None] = {}
    for key, words in values.items():
        holds_options = list(words) == [key]
        if not holds_options and decides(key, words):
            found |= dict.fromkeys(_names(words) or words)
        for word in words:
            found |= dict.fromkeys(_behind(word, command, frozenset()) if _may_hold_options(word, holds_options, command) else ())
    return list(found)


def _may_hold_options(word: str, holds_options: bool, command: ShellCommand) -> bool:
    """Also a word behind a switch that lt-train does not know may."""
    return holds_options or any(
        choice.startswith("--") for name in variables_in(word) for choice in command.conditional.get(name, ())
    )


def _names(words: Iterable[str]) -> list[str]:
    return [name for word in words for name in variables_in(word)]


def _behind(word: str, command: ShellCommand, seen: frozenset[str]) -> list[str]:
    """What decides over the options in a word that stands for several: the variables of a condition, or the word's own name."""
    if not WHOLE.fullmatch(word):
        return []
    names = [name for name in variables_in(word) if name not in seen]
    found: list[str] = []
    for name in names:
        choices = command.conditional.get(name)
        if choices is None:
            found += [name] if any(not OF_ENVIRONMENT.search(file) for file in command.sourced) else []
            continue
        if any(matters(key, words) for key, words in parse(choices).items() if not needs_shell(key)):
            found += command.causes.get(name) or [name]
        for choice in filter(needs_shell, choices):
            found += _behind(choice, command, seen | set(names))
    return found


def matters(key: str, words: Sequence[str]) -> bool:
    """Whether a run with the option learns otherwise than without it."""
    return decides(key, words) or effect_of_flag(key, words) is Effect.MODEL


def sources_of_options(command: ShellCommand) -> list[str]:
    return [file for file in command.sourced if not OF_ENVIRONMENT.search(file)]
