"""Find the logs of a run's ranks among logs whose names differ in numbers only: `77_3.out`, `gpt-15.log`, `slurm-77.n12.out`.

Such names may as well be separate runs: tasks of a job array, a sweep. The contents decide, and without evidence every log is a
run. A log that has ranks but not rank 0 belongs to another run. Logs with equal losses at equal steps are a single run, and so
are a log with the arguments of several ranks and a log with the steps, as Megatron's first and last rank print them. The run has
the name of its first log with rank 0 or with steps, and later evidence does not change the name.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from lt_monitor.events.records import Record
from lt_monitor.logs import log_files
from lt_monitor.logs.compressed_logs import DecompressedLog
from lt_monitor.logs.log_parser import LogParser
from lt_shared.console import ToolError
from lt_shared.files import storage

HEAD_BYTES = 1 << 16
TAIL_BYTES = 1 << 15
# So many steps with equal losses make two logs a single run.
COMMON_STEPS = 3
_NUMBER = re.compile(r"\d+")
# The end of a pod's name that Kubernetes makes up.
_RANDOM = re.compile(r"-[a-z0-9]{5}$")
_MAXIMUM_HOST_DIGITS = 4


@dataclasses.dataclass(frozen=True)
class _Content:
    """A log's begin and end: the ranks that its events name, losses by step, and whether it has arguments of several ranks."""

    ranks: frozenset[int]
    losses: Mapping[int, float]
    has_steps: bool
    has_arguments: bool

    @property
    def is_other_rank(self) -> bool:
        return bool(self.ranks) and 0 not in self.ranks

    @property
    def is_main(self) -> bool:
        return not self.is_other_rank and (self.has_steps or self.has_arguments or 0 in self.ranks)


def run_names(
    paths: Sequence[str], settled_names: Mapping[str, str] = MappingProxyType({}), idle: Collection[str] = ()
) -> dict[str, str]:
    """Return the run's name for every log.

    `settled_names` has the logs that keep their names, `idle` the logs without new content. Only similarly named logs are opened.
    """
    names = {path: log_files.run_name(path) for path in paths}
    by_shape: dict[str, list[str]] = {}
    for path, name in names.items():
        if path != log_files.STANDARD_INPUT and not storage.is_remote(path):
            directory, base = os.path.split(_RANDOM.sub("", name))
            by_shape.setdefault(os.path.join(directory, _NUMBER.sub("#", base)), []).append(path)
    for group in by_shape.values():
        is_settled = all(path in settled_names or path in idle for path in group)
        if len({names[path] for path in group}) > 1 and not is_settled:
            _join(group, names)
    _join_hosts([path for path in names if path not in settled_names], names)
    by_default = {names[path]: name for path, name in settled_names.items()}
    return {path: settled_names.get(path) or by_default.get(name, name) for path, name in names.items()}


def _numbers(name: str) -> list[str]:
    return _NUMBER.findall(os.path.basename(_RANDOM.sub("", name)))


def _join(group: Sequence[str], names: dict[str, str]) -> None:
    """Give the logs that make a run the same name in `names`."""
    fields = [_numbers(names[path]) for path in group]
    varying = [place for place, values in enumerate(zip(*fields, strict=True)) if len(set(values)) > 1]
    if not varying or not _may_be_ranks(group, [values[varying[-1]] for values in fields], names):
        _split(group, fields, varying, names)
        return
    contents: dict[str, _Content] = {}
    with_steps: _Content | None = None
    for path in group:
        content = contents[path] = _content(path)
        if content.is_main and content.has_steps:
            with_steps = with_steps or content
            # Two losses that differ decide: of 10,000 logs of a job array only two are opened.
            if content is not with_steps and not _agree(with_steps, content):
                _split(group, fields, varying, names)
                return
    mains = [path for path in group if contents[path].is_main]
    other_ranks = [path for path in group if contents[path].is_other_rank]
    ranks = {names[path]: contents[path].ranks for path in other_ranks}
    if len(set(ranks.values())) < len(ranks) or not _is_one_run([contents[path] for path in mains]):
        # The same rank in two logs, or other losses: several runs.
        _split(group, fields, varying, names)
        return
    if other_ranks or len(mains) > 1:
        with_rank_0 = [path for path in mains if 0 in contents[path].ranks or contents[path].has_arguments]
        leader = names[[*with_rank_0, *mains, *group][0]]
        names |= dict.fromkeys(group, leader)


def _join_hosts(paths: Sequence[str], names: dict[str, str]) -> None:
    """Give a run's logs in directories with any names, such as `n1/0.log` and `gold/0.log`, the name of their parent directory.

    Each log must name other ranks than the others; a log without ranks is the main log.
    """
    by_parent: dict[str, list[str]] = {}
    for path in paths:
        if path != log_files.STANDARD_INPUT and not storage.is_remote(path) and log_files.is_host_log(path):
            by_parent.setdefault(os.path.dirname(os.path.dirname(path)), []).append(path)
    for parent, group in by_parent.items():
        if (
            len({os.path.dirname(path) for path in group}) < 2
            or len({names[path] for path in group}) < 2
            or not parent.strip("./")
        ):
            continue
        contents = [_content(path) for path in group]
        ranks = [rank for content in contents for rank in content.ranks]
        mains = [content for content in contents if content.is_main]
        without_ranks = [content for content in contents if not content.ranks]
        if len(ranks) > len(set(ranks)) or len(without_ranks) > 1 or not ranks or not _is_one_run(mains):
            continue
        names |= dict.fromkeys(group, parent)


def _split(group: Sequence[str], fields: Sequence[Sequence[str]], varying: Sequence[int], names: dict[str, str]) -> None:
    """Look for runs among the logs that agree in the first number, such as the job's."""
    if len(varying) < 2:
        return
    by_first: dict[str, list[str]] = {}
    for path, values in zip(group, fields, strict=True):
        by_first.setdefault(values[varying[0]], []).append(path)
    for part in by_first.values():
        if len(part) > 1:
            _join(part, names)


def _may_be_ranks(group: Sequence[str], values: Sequence[str], names: Mapping[str, str]) -> bool:
    """Whether numbers count from 0 or 1, or end names of hosts. The numbers of jobs do neither, and their logs may be many."""
    numbers = sorted({int(value) for value in values if len(value) < 10})
    if numbers and numbers[0] <= 1 and numbers[-1] <= 2 * len(group):
        return True
    if max(map(len, values)) > _MAXIMUM_HOST_DIGITS:
        return False
    base = os.path.basename(_RANDOM.sub("", names[group[0]]))
    is_host = re.search(r"[A-Za-z]-?\d+$", base) is not None and re.fullmatch(r"(?:slurm|job)-?\d+", base) is None
    return base.startswith("ip-") or is_host


def _is_one_run(mains: Sequence[_Content]) -> bool:
    """Whether all logs with steps or arguments belong to one run."""
    with_steps = [content for content in mains if content.has_steps]
    if len(with_steps) > 1:
        return all(_agree(with_steps[0], other) for other in with_steps[1:])
    with_arguments, with_rank_0 = sum(main.has_arguments for main in mains), sum(0 in main.ranks for main in mains)
    return len(mains) <= 1 or (with_arguments <= 1 and with_rank_0 <= 1)


def _agree(one: _Content, other: _Content) -> bool:
    common = one.losses.keys() & other.losses.keys()
    return len(common) >= COMMON_STEPS and all(one.losses[step] == other.losses[step] for step in common)


def _content(path: str) -> _Content:
    records: list[Record] = []
    with contextlib.suppress(OSError, ToolError), log_files.open_log(path) as log:
        records = _records(log.read(HEAD_BYTES))
        if not isinstance(log, DecompressedLog):
            size = log.seek(0, 2)
            if size > HEAD_BYTES:
                log.seek(max(HEAD_BYTES, size - TAIL_BYTES))
                records += _records(log.read(TAIL_BYTES))
    steps = [record for record in records if record["kind"] == "step"]
    return _Content(
        ranks=frozenset(record["rank"] for record in records if type(record.get("rank")) is int),
        losses={record["step"]: record["loss"] for record in steps if record.get("loss") is not None},
        has_steps=bool(steps),
        has_arguments=any(record["kind"] == "start" and (record["arguments"].get("world_size") or 1) > 1 for record in records),
    )


def _records(text: bytes) -> list[Record]:
    return LogParser().parse(text[: text.rfind(b"\n") + 1], 0).records("", "")
