"""Tables of programs: shells that run a script from an argument, programs that only print, and programs that only test."""

import re
from collections.abc import Sequence

from lt_train.importers.shell.nodes import Arithmetic, Node, Pipeline, Simple, Test

PRINTING = frozenset(
    ("echo", "printf", "cat", "grep", "sed", "awk", "pgrep", "pkill", "ps", "kill", "tee", "logger", "git", "ls")
)
PROBING = frozenset(
    ("grep", "which", "command", "type", "diff", "ping", "nvidia-smi", "hash", "pgrep", "docker", "kill", "getopts")
)
SHELLS = re.compile(r"(.*/)?((ba|z|da)?sh|sbatch|ssh|pdsh|clush)")
OF_SHELL = re.compile(r"-[a-z]{0,5}c")
STARTING = "pretrain_"


def find_scripts(words: Sequence[str]) -> list[str]:
    """List the words that are scripts themselves: the argument of `sh -c`, or a text that starts a training."""
    if any(re.search(rf"{STARTING}\w+\.py$", word) for word in words):
        return []
    scripts = []
    for place, word in enumerate(words):
        is_read = place > 1 and OF_SHELL.fullmatch(words[place - 1]) and any(map(SHELLS.fullmatch, words[: place - 1]))
        if is_read or (STARTING in word and re.search(r"\s", word.strip())):
            scripts.append(word)
    return scripts


def is_test(node: Node) -> bool:
    """Whether `node` tests something, so that the interpreter may not assume that it succeeds."""
    if isinstance(node, Pipeline):
        return is_test(node.parts[-1])
    if isinstance(node, Simple):
        return bool(node.words) and node.words[0] in ("[", "test", *PROBING)
    return isinstance(node, Test | Arithmetic)
