"""Parse the words of pretrain_gpt.py's command line into options with their values."""

import itertools
import re
import shlex
from collections.abc import Sequence
from typing import Any

from lt_train.importers.ledger import options
from lt_train.importers.shell.unknown import needs_shell
from lt_train.importers.upstream import megatron_forks
from lt_train.importers.upstream.megatron_options import ROWS
from lt_train.importers.upstream.rows import options as upstream_options

# A program name after a launcher's option ends the launcher's options, so the option is a switch.
PROGRAM = re.compile(r"(.*/)?(python[\d.]*|torchrun|(ba)?sh|env|srun|mpirun|numactl|nsys|deepspeed|accelerate)")
WITH_SUBSTITUTIONS = re.compile(r"(?:\$\([^)]*\)+|[^\s$]|\$)+")
PROGRAM_OF_GPT = re.compile(r"(^|/)pretrain_(gpt|llama|hybrid|mamba)\w*\.py$")


def is_script(word: str) -> bool:
    return PROGRAM_OF_GPT.search(word) is not None


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Map each option to the list of its words.

    An unexpanded shell word belongs to the option before it if that option takes a value and has none yet. Otherwise the word
    is a key, because it may expand to options.
    """
    values: dict[str, Any] = {}
    option: str | None = None
    for word in map(_bare, itertools.chain.from_iterable(map(_split, words))):
        if word.startswith("--"):
            name, is_assigned, value = word[2:].partition("=")
            option = name.replace("-", "_")
            values[option] = [value] if is_assigned else []
        elif option is None or (needs_shell(word) and (values[option] or _takes_no_value(option))):
            values[word] = [word]
        else:
            values[option].append(word)
    return values


def full_name(key: str) -> str:
    """Return the only option of Megatron-LM that begins with `key`, because argparse accepts unambiguous abbreviations."""
    if key in options() or key in upstream_options("megatron_lm") or key in ROWS or key in megatron_forks.ROWS:
        return key
    names = [name for name in upstream_options("megatron_lm") if name.startswith(key)]
    return names[0] if len(names) == 1 else key


def parse_launcher(words: Sequence[str]) -> dict[str, Any]:
    """Parse the options of srun, torchrun and other launchers. A switch is True; a repeated option has a list of values.

    The options of launchers are not in a table. An option takes the next word unless that word is a program or an option.
    """
    values_by_option: dict[str, list[str | bool]] = {}
    for word, following in itertools.zip_longest(words, words[1:], fillvalue="-"):
        if not word.startswith("-"):
            continue
        name, is_assigned, value = word.partition("=")
        is_alone = following.startswith("-") or PROGRAM.fullmatch(following) is not None
        values_by_option.setdefault(f"launcher {name}", []).append(value if is_assigned else is_alone or following)
    return {key: values[0] if len(values) == 1 else values for key, values in values_by_option.items()}


def _split(word: str) -> list[str]:
    """Split a text that contains several options, because bash splits an unquoted variable into words."""
    if not (word.lstrip().startswith("--") and re.search(r"\s", word.strip())):
        return [word]
    return WITH_SUBSTITUTIONS.findall(word) if needs_shell(word) else shlex.split(word)


def _bare(word: str) -> str:
    """Remove quotes around a word. They remain from a text that was split into words; no option needs them."""
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word


def _takes_no_value(option: str) -> bool:
    declared = options().get(option)
    return declared is not None and declared.is_flag
