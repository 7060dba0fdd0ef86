"""Find a job's output file in the sbatch or srun command line that accounting stores, and expand its file name pattern."""

import re
import shlex
from collections.abc import Mapping

# Options of sbatch, srun and salloc without a value; `K` and `s` accept a value only in the same word.
_SHORT_FLAGS = frozenset("EHIKOQVWXZhklsuv")
_LONG_FLAGS = frozenset(
    {
        *("contiguous", "exclusive", "get-user-env", "help", "hold", "ignore-pbs", "immediate", "nice", "no-kill", "no-requeue"),
        *("overcommit", "overlap", "oversubscribe", "parsable", "preserve-env", "propagate", "pty", "quiet", "reboot", "requeue"),
        *("spread-job", "test-only", "unbuffered", "usage", "use-min-nodes", "verbose", "version", "wait", "wait-all-nodes"),
        *("disable-status", "exact", "kill-on-bad-exit", "label", "multi-prog", "no-allocate", "resv-ports", "share"),
    }
)
# `ou` is the shortest abbreviation of --output: --overcommit, --overlap and --oversubscribe begin with `o`, too.
_OUTPUT, _SHORTEST_OUTPUT = "output", "ou"
_PATTERN = re.compile(r"%(\d{0,9})([%AabJjxuntNrs])")
_TEXTS = "xuN%s"
# Slurm pads numbers to at most this many digits.
_MOST_DIGITS = 10
_RANGES = re.compile(r"\[(\d+)[^\]]*\]")


def output(submit_line: str) -> str:
    """Return the value of --output in the command line, or an empty text. The words after the script are its own arguments."""
    try:
        words = shlex.split(submit_line)
    except ValueError:
        return ""
    output_pattern, index = "", 1
    while index < len(words):
        word, index = words[index], index + 1
        if word == "--" or not word.startswith("-") or word == "-":
            break
        following = words[index] if index < len(words) else ""
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            takes_next = not sign and name not in _LONG_FLAGS
            is_output = _OUTPUT.startswith(name) and name.startswith(_SHORTEST_OUTPUT)
        else:
            flags = len(word[1:]) - len(word[1:].lstrip("".join(_SHORT_FLAGS)))
            name, value = word[1 + flags : 2 + flags], word[2 + flags :]
            takes_next = bool(name) and not value
            is_output = name == "o"
        if takes_next:
            value, index = following, index + 1
        if is_output:
            output_pattern = value
    return output_pattern


def expanded(pattern: str, values: Mapping[str, str]) -> str:
    """Replace the symbols of a file name pattern by `values`; return an empty text if a symbol has no value."""
    if "\\" in pattern:
        return pattern.replace("\\", "")
    if any(not values.get(match[2]) for match in _PATTERN.finditer(pattern)):
        return ""
    return _PATTERN.sub(lambda match: _filled(values[match[2]], match[1], match[2]), pattern)


def _filled(value: str, digits: str, symbol: str) -> str:
    return value if symbol in _TEXTS else value.zfill(min(int(digits or 0), _MOST_DIGITS))


def first_host(nodes: str) -> str:
    """Return the batch script's node, e.g. n001 from `n[001-004,007].cluster`; empty for a text that is no node list."""
    return "" if nodes.startswith("None") else _RANGES.sub(r"\1", nodes).split(",")[0].split(".")[0]
