"""Recognise labels in front of a line by their form alone.

`lines.Line` reads native labels itself, at full speed: the time and the pod of kubectl, the task of `srun --label`, the rank of
torchrun's `--tee`. Foreign labels come from containers (CRI), journald and syslog, `ts`, mpirun, Ray, and node arrows.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from lt_monitor.events.records import Record
from lt_shared.lazy_patterns import regex

MAXIMUM_PREFIXES = 6
MAXIMUM_SPELLINGS = 2

_ISO_TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_MONTH_TIME = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?"
_FULL_TIME = rb"[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? \w{1,5}"
_COLOUR = rb"(?:\x1b\[[\d;]{0,20}m){0,4}"
_DIGITS = regex(rb"\d+")
_HOST = rb"[A-Za-z0-9][\w.-]{0,252}"

_NATIVE = (
    rb"(?P<time>" + _ISO_TIME + rb") ",
    rb"\[pod/(?P<node>[^\]/ ]{1,253})(?:/[^\] ]{0,253})?\] ",
    rb" {0,8}(?P<task>\d{1,6}): ",
    rb"\[(?:rank(?P<rank>\d{1,6})|[a-z]{1,20}\d{1,6})\]: ?",
)
_FOREIGN = (
    # CRI, as containerd and CRI-O write it: /var/log/pods/NAMESPACE_POD_UID/CONTAINER/0.log.
    rb"(?P<time>" + _ISO_TIME + rb") std(?:out|err) [FP](?::[^ \n]{0,80})? ",
    # journalctl's short, short-iso, short-precise and short-full; the kernel's lines have no process, and their host is needed.
    rb"(?:(?P<time>" + _ISO_TIME + rb")|" + _MONTH_TIME + rb"|" + _FULL_TIME + rb") (?P<node>" + _HOST + rb")"
    rb" [\w./@()-]{1,100}\[\d{1,10}\]: ",
    rb"<\d{1,3}>1 (?P<time>" + _ISO_TIME + rb") (?P<node>" + _HOST + rb") \S{1,48} \S{1,128} \S{1,32} (?:-|\[[^\]\n]{0,1000}\]) ",
    # mpirun --tag-output, with --timestamp-output before it, also in PRRTE.
    rb"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?\[[\w.@-]{1,200},(?P<rank>\d{1,7})\]"
    rb"(?:\[[\w.-]{1,252}\])?<std(?:out|err|diag)>: ?",
    # SageMaker's mpirun.
    rb"\[\d{1,9},mpirank:(?P<rank>\d{1,7}),(?P<node>[\w.-]{1,252})\]<std(?:out|err|diag)>:",
    rb"\((?:[\w.:<>\[\]+=/-]{1,200} )?pid=\d{1,10}(?:, ip=(?P<node>[\w.:-]{1,252}))?\)" + _COLOUR + rb" ?",
    # SkyPilot's.
    rb"\([\w.-]{1,100}, (?:rank=(?P<rank>\d{1,7}), )?pid=\d{1,10}(?:, ip=(?P<node>[\w.:-]{1,252}))?\)" + _COLOUR + rb" ",
    # gh run view --log.
    rb"[^\t\r\n]{1,200}\t[^\t\r\n]{1,200}\t(?:\xef\xbb\xbf)?(?P<time>" + _ISO_TIME + rb") ",
    rb"\((?:raylet|gcs_server)(?:, ip=(?P<node>[\w.:-]{1,252}))?\)" + _COLOUR + rb" ?",
    rb"(?:\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})? )?(?P<node>(?=\d{0,252}[A-Za-z.-])[A-Za-z0-9][\w.-]{0,252}) >> ",
    # `ts` of moreutils.
    _MONTH_TIME + rb" (?!" + _HOST + rb" kernel: |" + _HOST + rb" [\w./@()-]{1,100}(?:\[\d{1,10}\])?: )",
)


def _compiled(source: bytes) -> re.Pattern[bytes]:
    return regex(_COLOUR + source + _COLOUR)


def _unnamed(sources: tuple[bytes, ...]) -> bytes:
    return b"|".join(re.sub(rb"\(\?P<\w+>", b"(?:", source) for source in sources)


_SOURCES = _FOREIGN + _NATIVE
_PATTERNS = [_compiled(source) for source in _SOURCES]
_ALL_KINDS, _NATIVE_KINDS = range(len(_SOURCES)), range(len(_FOREIGN), len(_SOURCES))
_ANY_FOREIGN = _compiled(rb"(?:" + _unnamed(_FOREIGN) + rb")")
_CHAIN = regex(rb"(?:" + _COLOUR + rb"(?:" + _unnamed(_SOURCES) + rb")" + _COLOUR + rb"){1,%d}" % MAXIMUM_PREFIXES)


def kinds(line: bytes) -> frozenset[int]:
    """Return the kinds of labels in front of a line."""
    return frozenset(kind for kind, _ in _matches(line))


def is_foreign(kind: int) -> bool:
    """Whether `Line` does not read this label itself."""
    return kind < len(_FOREIGN)


@functools.lru_cache(maxsize=64)
def lines_with(kinds: frozenset[int], spellings: tuple[bytes, ...] = ()) -> re.Pattern[bytes]:
    """Return a pattern for a newline and all labels of `kinds` behind it. The newline lets the search jump from line to line.

    `spellings` are patterns of frequent labels, which match twice as fast.
    """
    sources = tuple(_SOURCES[kind] for kind in sorted(kinds))
    chain = rb"(?:" + _COLOUR + rb"(?:" + _unnamed(sources) + rb")" + _COLOUR + rb"){1,%d}" % MAXIMUM_PREFIXES
    frequent = rb"(?:" + b"|".join(spellings) + rb")(?:" + chain + rb")?|" if spellings else b""
    return re.compile(rb"\n(?:" + frequent + chain + rb")")


def spellings(labels: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return patterns of the most frequent of `labels`; a number in a label stands for any number."""
    counts = Counter(_DIGITS.sub(rb"\\d+", re.escape(label)) for label in labels if label)
    return tuple(spelling for spelling, _ in counts.most_common(MAXIMUM_SPELLINGS))


def names_nobody(kinds: frozenset[int]) -> bool:
    """Return whether labels with these kinds contain only a time."""
    return all(_PATTERNS[kind].groupindex.keys() <= {"time"} for kind in kinds)


def _matches(line: bytes, kinds: Iterable[int] = _ALL_KINDS) -> Iterator[tuple[int, re.Match[bytes]]]:
    ordered = sorted(kinds)
    begin = 0
    for _ in range(MAXIMUM_PREFIXES):
        # One search for all foreign labels, which most lines do not have.
        has_no_foreign = kinds is _ALL_KINDS and _ANY_FOREIGN.match(line, begin) is None
        for kind in _NATIVE_KINDS if has_no_foreign else ordered:
            match = _PATTERNS[kind].match(line, begin)
            if match is not None:
                break
        else:
            return
        yield kind, match
        begin = match.end()


def chain_end(line: bytes) -> int:
    """Return the end of the labels of any kind in front of a line."""
    match = _CHAIN.match(line)
    return match.end() if match is not None else 0


def read_chain(line: bytes, kinds: frozenset[int]) -> Record:
    """Parse `time`, `node`, `task` and `rank` from the labels of `kinds` in front of a line. The innermost of two wins."""
    labels: Record = {}
    for _, match in _matches(line, kinds):
        labels |= read_groups(match)
    return labels


def read_groups(match: re.Match[bytes]) -> Record:
    """Parse one label."""
    labels: Record = {}
    for field, text in match.groupdict().items():
        if text is None:
            continue
        if field in ("task", "rank"):
            labels[field] = int(text)
        else:
            labels[field] = text.decode(errors="replace").replace(",", ".")
    return labels
