"""Find the command of pretrain_gpt.py in a shell script, and list the unknown variables that the user has to --set.

If a script starts pretrain_gpt.py twice with options that would train different runs, importing it is an error.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from lt_shared.console import BadData
from lt_train.importers.effects import Effect
from lt_train.importers.megatron_flags import decides_run, effect_of_flag
from lt_train.importers.megatron_words import is_script, parse
from lt_train.importers.shell.command import ShellCommand
from lt_train.importers.shell.script import commands
from lt_train.importers.shell.unknown import needs_shell, variables_in

OTHER_PROGRAM = re.compile(r"(^|/)\w*(pretrain|finetune|train)\w*\.py$")
OF_NEMO = "import the YAML that its --config-name names, with --set KEY=VALUE for what the command line overrides"
# A start of pretrain_gpt.py outside of comments.
STARTED = re.compile(r"^[^#\n]*pretrain_(gpt|hybrid|mamba)\w*\.py", re.MULTILINE)
COMMAND_LINE = "pass it: lt-train import -- torchrun ... pretrain_gpt.py ..."
WHOLE = re.compile(r"\$\{?\w+\}?|\$\(.*\)|`.*`", re.DOTALL)
# Sourced files that set up Python or the machine and contain no training options.
OF_ENVIRONMENT = re.compile(r"activate|bashrc|profile|conda|module|lmod|setvars|venv|spack|env|\.rc")


def command_in(text: str, overrides: Mapping[str, str] | None = None) -> ShellCommand:
    """Return the command that starts pretrain_gpt.py in a shell script.

    Raises BadData if there is none, or if two commands would train different runs.
    """
    try:
        all_commands = commands(text, overrides)
    except ValueError as error:
        raise BadData(f"not a command line: {error}") from None
    executed = [command for command in all_commands if not command.is_text]
    starting = [command for command in executed if any(map(is_script, command.words))]
    if starting:
        for command in starting[1:]:
            _check_same(starting[0], command)
        return starting[0]
    if not any(command.is_text for command in all_commands) and STARTED.search(text):
        raise BadData("only a run of the script knows the command of pretrain_gpt.py", COMMAND_LINE)
    raise _missing_command_error(executed, [command for command in all_commands if command.is_text])


def _missing_command_error(run: Iterable[ShellCommand], written: Sequence[ShellCommand]) -> BadData:
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
    """Raise BadData if the two commands would train different runs."""
    one, other = _deciding_options(first), _deciding_options(second)
    different = [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]
    if not different:
        return
    names = ", ".join(key if key.startswith("$") else f"--{key.replace('_', '-')}" for key in different[:3])
    more = f" and {len(different) - 3} others" if len(different) > 3 else ""
    causes = list(dict.fromkeys([*first.guards, *second.guards]))
    hint = f"what decides it: {' '.join(f'--set {name}=VALUE' for name in causes)}" if causes else COMMAND_LINE
    raise BadData(f"lines {first.line} and {second.line} start pretrain_gpt.py with different options: {names}{more}", hint)


def _deciding_options(command: ShellCommand) -> dict[str, list[str]]:
    place = next(index for index, word in enumerate(command.words) if is_script(word))
    values = parse(command.words[place + 1 :])
    return {key: words for key, words in values.items() if needs_shell(key) or decides_run(key, words) or _may_matter(key, words)}


def _may_matter(key: str, words: Sequence[str]) -> bool:
    return effect_of_flag(key, words) is Effect.MODEL


def variables_to_set(values: Mapping[str, Sequence[str]], command: ShellCommand) -> list[str]:
    """List the variables that the user has to --set for `values`, and the substitutions that contain no variable.

    `values` are the options that contain unknown parts, with their words.
    """
    names: dict[str, None] = {}
    for key, words in values.items():
        holds_options = list(words) == [key]
        if not holds_options and decides_run(key, words):
            names |= dict.fromkeys(_names(words) or words)
        for word in words:
            names |= dict.fromkeys(
                _deciding_variables(word, command, frozenset()) if _may_hold_options(word, holds_options, command) else ()
            )
    return list(names)


def _may_hold_options(word: str, holds_options: bool, command: ShellCommand) -> bool:
    """Whether an unknown word may expand to options: it stands alone, or one of its choices begins with `--`."""
    return holds_options or any(
        choice.startswith("--") for name in variables_in(word) for choice in command.conditional.get(name, ())
    )


def _names(words: Iterable[str]) -> list[str]:
    return [name for word in words for name in variables_in(word)]


def _deciding_variables(word: str, command: ShellCommand, visited: frozenset[str]) -> list[str]:
    """List the variables that decide which options the word `$NAME` expands to.

    These are the variables of the condition that sets NAME, or NAME itself if a sourced file may set it.
    """
    if not WHOLE.fullmatch(word):
        return []
    names = [name for name in variables_in(word) if name not in visited]
    deciding: list[str] = []
    for name in names:
        choices = command.conditional.get(name)
        if choices is None:
            deciding += [name] if any(not OF_ENVIRONMENT.search(file) for file in command.sourced) else []
            continue
        if any(changes_training(key, words) for key, words in parse(choices).items() if not needs_shell(key)):
            deciding += command.causes.get(name) or [name]
        for choice in filter(needs_shell, choices):
            deciding += _deciding_variables(choice, command, visited | set(names))
    return deciding


def changes_training(key: str, words: Sequence[str]) -> bool:
    """Whether dropping the option would change the model or the run."""
    return decides_run(key, words) or effect_of_flag(key, words) is Effect.MODEL


def sourced_option_files(command: ShellCommand) -> list[str]:
    return [file for file in command.sourced if not OF_ENVIRONMENT.search(file)]
