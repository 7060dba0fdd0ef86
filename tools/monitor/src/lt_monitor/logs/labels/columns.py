"""Recognise column labels: names before each line that no fixed form gives away.

A host (pdsh, clush), a pod and its container (stern), a service (docker compose), a replica (torchx) or a stream (aws logs), a
rank in brackets (Hydra's -prepend-rank), a tag and a tabulator (GNU parallel), the line numbers of a viewer, a process (pm2,
supervisor, pueue), a set of nodes (clush).

Any line may begin with a word and a colon. Such a word is a label when nearly all lines of a block begin with one, and when the
words are few and repeat. A kind that was recognised once applies to the rest of the log.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from lt_monitor.events.records import Record
from lt_shared.lazy_patterns import regex

MINIMUM_LINES = 4
MINIMUM_SHARE = 0.9
MAXIMUM_NAMES = 4096
FEW_LINES_BYTES = 1 << 16

_COLOUR = rb"(?:\x1b\[[\d;]{0,20}m){0,4}"
# Words that programs print before their lines as their own name or as a severity: no labels.
_NO_NAME_SOURCE = (
    rb"(?:debug|info|note|notice|hint|warn|warning|error|err|critical|fatal|trace|exception|traceback|usage|srun|sbatch|slurmd"
    rb"|slurmstepd|wandb|bash|sh|python\d{0,3}|python3?\.\d{1,2}|lt-\w{1,20}|make|pip|torchrun|deepspeed|accelerate|step|epoch"
    rb"|iter"
    rb"|iteration|loss|rank|train|val|valid|eval|test|cuda)[\d_]{0,9}$|.{0,200}\.(?:py|sh|cc|cpp|cu|c|h|rs|go|js|so|json|log|yaml)$"
)
_NO_NAMES = regex(rb"(?i)" + _NO_NAME_SOURCE)


class Column(NamedTuple):
    """One kind of label: a repeating name, and the patterns before and behind it. `is_numbered`: names are consecutive numbers.

    `is_certain`: no program prints the text around the name itself, so the name may be any word.
    """

    before: bytes
    name: bytes
    behind: bytes
    field: str | None
    is_numbered: bool = False
    is_certain: bool = False

    def pattern(self) -> re.Pattern[bytes]:
        return regex(self.before + rb"(?P<name>" + self.name + rb")" + self.behind)


_WORD = rb"[A-Za-z][\w.-]{0,252}"
_HOST = _WORD + rb"|\d{1,3}(?:\.\d{1,3}){3}"
_POD = rb"(?=[a-z0-9.]{0,252}-)[a-z0-9][a-z0-9.-]{0,252}"
COLUMNS: dict[str, Column] = {
    # pm2, and supervisor if its own log contains the output.
    "process": Column(_COLOUR + rb"\d{1,4}\|", rb"[\w.@/-]{1,100}", rb" {1,60}\| ?" + _COLOUR, None, is_certain=True),
    "supervised": Column(
        rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]{4} '",
        rb"[^'\r\n]{1,100}",
        rb"' std(?:out|err) output: ?",
        None,
        is_certain=True,
    ),
    # pueue.
    "task": Column(_COLOUR, _WORD, _COLOUR + rb" > ", None),
    # clush, when it merges the output of several nodes.
    "nodes": Column(_COLOUR, _WORD + rb"\[\d[\d,-]{0,200}\]", rb": " + _COLOUR, None),
    # With --all-namespaces the namespace stands first; old versions put an arrow between pod and container.
    "pod": Column(
        _COLOUR + rb"(?:[a-z0-9]{1,63} " + _COLOUR + rb")?",
        _POD,
        _COLOUR + rb" (?:\xe2\x80\xba )?" + _COLOUR + rb"[a-z][a-z0-9-]{0,62}" + _COLOUR + rb" ",
        "node",
    ),
    # docker's of a swarm adds the task and the node.
    "service": Column(_COLOUR, _WORD + rb"(?:@[\w.-]{1,252})?", rb" {1,60}\| ?" + _COLOUR, "node"),
    "replica": Column(_COLOUR, rb"[a-z][\w.-]{0,60}(?:/[\w.$-]{1,100}){1,4}", _COLOUR + rb" ", "node"),
    # mpiexec --label of HPE.
    "host-rank": Column(_COLOUR, _WORD, rb" \d{1,7}: ", "node"),
    "host": Column(_COLOUR, _HOST, rb": " + _COLOUR, "node"),
    "tag": Column(_COLOUR, _WORD, rb"\t", "node"),
    "rank": Column(rb"\[", rb"\d{1,7}", rb"\] ", "rank"),
    "number": Column(rb" {0,9}", rb"\d{1,9}", rb"(?:\t| {0,2}(?:\||\xe2\x94\x82) ?|:(?! )| {1,2})", None, is_numbered=True),
}
# Labels that can be recognised in few lines: host names contain a number, other names end with one.
_NO_NAME_WORDS = _NO_NAME_SOURCE.replace(b"$", b"(?: {1,60}\\||\\[|: )").replace(b".{0,200}", b"\\S{0,200}")
_NO_NAME_BEFORE = rb"(?!" + _NO_NAME_WORDS + rb")"
_FEW_LINES = {
    "process": COLUMNS["process"].pattern(),
    "supervised": COLUMNS["supervised"].pattern(),
    "task": regex(_COLOUR + _NO_NAME_BEFORE + rb"[a-z][a-z.-]{0,252}\d[\w.-]{0,200} > "),
    "nodes": regex(_COLOUR + _NO_NAME_BEFORE + rb"[a-z][a-z.-]{0,252}\[\d[\d,-]{0,200}\]: "),
    "pod": regex(
        _COLOUR
        + rb"(?:[a-z0-9]{1,63} )?[a-z0-9]{1,63}(?:[.-][a-z0-9]{1,63}){0,20}-\d{1,6}"
        + _COLOUR
        + rb" (?:\xe2\x80\xba )?(?!(?:exited|failed|died|killed|terminated|started|joined|is|was|has|and) )[a-z][a-z0-9-]{0,62} "
    ),
    "service": regex(
        _COLOUR + _NO_NAME_BEFORE + rb"[A-Za-z][\w.-]{0,200}(?:[._-]\d{1,6}|\.\d{1,6}\.\w{1,60}@[\w.-]{1,252}) {1,60}\| "
    ),
    "replica": regex(_COLOUR + rb"[a-z][\w.-]{0,60}(?:/[\w.$-]{1,100}){0,3}/\d{1,6}" + _COLOUR + rb" "),
    "host": regex(_NO_NAME_BEFORE + rb"(?:[a-z][a-z.-]{0,252}\d[\w.-]{0,200}|\d{1,3}(?:\.\d{1,3}){3}): "),
}
_PATTERNS = {kind: column.pattern() for kind, column in COLUMNS.items()}


def recognise(lines: Sequence[bytes], samples: Sequence[Sequence[bytes]]) -> str | None:
    """Return the kind of column before nearly all `lines`, or None. `samples` are runs of consecutive lines, for line numbers."""
    filled = [line for line in lines if line.strip()]
    if len(filled) < MINIMUM_LINES:
        return next((kind for kind, form in _FEW_LINES.items() if filled and all(map(form.match, filled))), None)
    for kind, column in COLUMNS.items():
        if column.is_numbered:
            if _are_numbered(_PATTERNS[kind], samples):
                return kind
            continue
        matches = _matches_of_nearly_all(_PATTERNS[kind], filled)
        if not matches:
            continue
        names = Counter(match["name"] for match in matches)
        if 2 * len(names) > len(matches):
            continue
        if column.is_certain or (not any(map(_NO_NAMES.match, names)) and _are_names(kind, names)):
            return kind
    return None


def _matches_of_nearly_all(pattern: re.Pattern[bytes], lines: Sequence[bytes]) -> list[re.Match[bytes]]:
    """Return the matches, or an empty list as soon as too many lines do not match, because most logs have no labels."""
    matches = []
    misses = int((1 - MINIMUM_SHARE) * len(lines) + 1e-9)
    for line in lines:
        match = pattern.match(line)
        if match is not None:
            matches.append(match)
        elif misses:
            misses -= 1
        else:
            return []
    return matches


def _are_names(kind: str, names: Counter[bytes]) -> bool:
    """Whether the names can be names of this kind. A host name without a digit, a dot or a dash is only a word."""
    if kind == "nodes":
        return not any(_NO_NAMES.match(name.partition(b"[")[0]) for name in names)
    return kind not in ("host", "host-rank", "tag", "task") or all(
        re.search(rb"[\d.-]|^(?:localhost|master|worker|head)$", name) for name in names
    )


def _are_numbered(pattern: re.Pattern[bytes], samples: Sequence[Sequence[bytes]]) -> bool:
    pairs = alike = 0
    if not any(pattern.match(line) for run in samples for line in run[::4]):
        return False
    for run in samples:
        numbers = [int(match["name"]) if (match := pattern.match(line)) is not None else -1 for line in run]
        pairs += len(numbers) - 1
        alike += sum(second == first + 1 and first >= 0 for first, second in itertools.pairwise(numbers))
    return pairs >= MINIMUM_LINES - 1 and alike >= MINIMUM_SHARE * pairs


def names_in(text: bytes, kind: str, block: bytes) -> set[bytes]:
    """Return the names of a kind in front of the lines of a text that repeat in the text, or in the block that it comes from."""
    pattern = re.compile(rb"\n" + _PATTERNS[kind].pattern)
    names = Counter(match["name"] for match in pattern.finditer(b"\n" + text))
    few = block.count(b"\n", 0, FEW_LINES_BYTES) < MINIMUM_LINES
    is_certain = COLUMNS[kind].is_certain
    return {
        name
        for name, count in names.most_common(MAXIMUM_NAMES)
        if (few or count > 1 or (len(text) < len(block) and block.count(name) > 1))
        and (is_certain or _NO_NAMES.match(name) is None)
    }


def lines_with(kind: str, names: frozenset[bytes]) -> re.Pattern[bytes]:
    """Return a pattern for a newline and the label behind it with one of `names`."""
    column = COLUMNS[kind]
    name = column.name if column.is_numbered else b"|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.compile(rb"\n" + column.before + rb"(?:" + name + rb")" + column.behind)


def read(kind: str, line: bytes) -> Record:
    """Parse the label in front of a line."""
    column = COLUMNS[kind]
    match = _PATTERNS[kind].match(line)
    if match is None or column.field is None:
        return {}
    name = match["name"]
    return {"rank": int(name)} if column.field == "rank" else {column.field: name.decode(errors="replace")}
