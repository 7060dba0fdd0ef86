"""The words of pretrain_gpt.py's command line as options with their values."""

import itertools
import re
import shlex
from collections.abc import Sequence
from typing import Any

from lt_train.importers.ledger import options
from lt_train.importers.shell.unknown import needs_shell
from lt_train.importers.upstream.megatron_options import ROWS
from lt_train.importers.upstream.rows import options as upstream_options

# What stands behind an option of a launcher that has no value.
PROGRAM = re.compile(r"(.*/)?(python[\d.]*|torchrun|(ba)?sh|env|srun|mpirun|numactl|nsys|deepspeed|accelerate)")
WITH_SUBSTITUTIONS = re.compile(r"(?:\$\([^)]*\)+|[^\s$]|\$)+")
PROGRAM_OF_GPT = re.compile(r"(^|/)pretrain_(gpt|llama)\w*\.py$")


def is_script(word: str) -> bool:
    return PROGRAM_OF_GPT.search(word) is not None


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Options with their list of words; a word that needs the shell is one of a single option's, or has a key of its own."""
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
    """The only option of Megatron-LM that begins with `key`: its parser takes abbreviations, too."""
    if key in options() or key in upstream_options("megatron_lm") or key in ROWS:
        return key
    names = [name for name in upstream_options("megatron_lm") if name.startswith(key)]
    return names[0] if len(names) == 1 else key


def launcher(words: Sequence[str]) -> dict[str, Any]:
    """Parse the options of srun, torchrun and the like; a switch is True, a repeated option has a list.

    Whether an option takes the next word is a guess: it does, unless that word is a program.
    """
    found: dict[str, list[str | bool]] = {}
    for word, following in itertools.zip_longest(words, words[1:], fillvalue="-"):
        if not word.startswith("-"):
            continue
        name, is_assigned, value = word.partition("=")
        is_alone = following.startswith("-") or PROGRAM.fullmatch(following) is not None
        found.setdefault(f"launcher {name}", []).append(value if is_assigned else is_alone or following)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def _split(word: str) -> list[str]:
    """Split a word into options: unquoted, bash splits an array's or an argument's text into words."""
    if not (word.lstrip().startswith("--") and re.search(r"\s", word.strip())):
        return [word]
    return WITH_SUBSTITUTIONS.findall(word) if needs_shell(word) else shlex.split(word)


def _bare(word: str) -> str:
    """Quotes within a text that became words stay on them: no option means them."""
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word


def _takes_no_value(option: str) -> bool:
    found = options().get(option)
    return found is not None and found.is_flag
