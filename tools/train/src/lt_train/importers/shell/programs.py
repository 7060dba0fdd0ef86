"""Programs that a script is followed around: which read their words as a script, and which only look at something."""

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


def scripts_in(words: Sequence[str]) -> list[str]:
    """Words that another shell reads: behind -c, or with a command that starts a training."""
    if any(re.search(rf"{STARTING}\w+\.py$", word) for word in words):
        return []
    found = []
    for place, word in enumerate(words):
        is_read = place > 1 and OF_SHELL.fullmatch(words[place - 1]) and any(map(SHELLS.fullmatch, words[: place - 1]))
        if is_read or (STARTING in word and re.search(r"\s", word.strip())):
            found.append(word)
    return found


def is_test(node: Node) -> bool:
    """Whether it is not taken for granted that it succeeds."""
    if isinstance(node, Pipeline):
        return is_test(node.parts[-1])
    if isinstance(node, Simple):
        return bool(node.words) and node.words[0] in ("[", "test", *PROBING)
    return isinstance(node, Test | Arithmetic)
