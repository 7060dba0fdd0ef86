"""Read the result files of EleutherAI's lm-evaluation-harness (`lm_eval --output_path`): scores of a run's checkpoints.

The harness writes `results_TIME.json` into a directory with the name of the model, which is the checkpoint's path with `__` for
each slash. The step is not in the file: it is the number at the end of that name or of a directory above it, as in
`iter_0001000`, `step-500` or `checkpoint-20`. Versions before 0.4 call a metric `acc`, later ones `acc,none`, with the filter
that picked the answer.
"""

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lt_shared.console import BadData, NoInput, warn
from lt_shared.files import listing, storage

MAXIMUM_BYTES = 64 << 20
# A task's main metric is the first metric in this order that it has.
PREFERRED = ("acc_norm", "acc", "exact_match")

_FILE = re.compile(r"results(?:_.*)?\.json")
_STEP = re.compile(r"(?:^|[^A-Za-z])(?:iter|iteration|step|checkpoint|ckpt)[-_]?(\d{1,15})(?:-tokens\w+)?")
# lt-convert follow renames the results of a checkpoint that was written again to this.
_PUT_ASIDE = re.compile(r"(?:iter_|step-)\d+\.\d+")
_NO_FILTER = "none"
_NO_SCORES = ("alias", "name", "sample_len", "samples")


@dataclasses.dataclass(frozen=True)
class HarnessResults:
    """The scores of a checkpoint by name (`hellaswag/acc_norm`). `main` names the scores of whole tasks and groups."""

    step: int
    date: float
    scores: Mapping[str, float]
    main: tuple[str, ...]


def read(directory: str) -> list[HarnessResults]:
    """Read every result below a directory, sorted by step, newest last. Warns about files that are no results.

    Raises NoInput when there is no such directory, BadData when no file in it has a score.
    """
    if not storage.is_remote(directory) and not os.path.isdir(directory):
        raise NoInput(f"{directory}: no such directory")
    results = [result for path in listing.files_below(directory) if (result := _read(path, directory)) is not None]
    if not results:
        raise BadData(
            f"{directory}: no scores of a checkpoint",
            "expected results_*.json of lm_eval below directories like iter_0001000 or step-500",
        )
    return sorted(results, key=lambda result: (result.step, result.date))


def _read(path: str, directory: str) -> HarnessResults | None:
    base = os.path.basename(directory.rstrip("/"))
    parts = [base, *os.path.relpath(path, directory).split("/")] if not storage.is_remote(path) else path.split("/")
    if not _FILE.fullmatch(parts[-1]) or any(_PUT_ASIDE.fullmatch(part) for part in parts[:-1]):
        return None
    step = next((int(match[1]) for part in reversed(parts[:-1]) if (match := _at_end(part))), None)
    if step is None:
        warn(f"{path}: left out: no directory above it ends with an iteration")
        return None
    try:
        if storage.size_bytes(path) > MAXIMUM_BYTES:
            raise ValueError(f"it has more than {MAXIMUM_BYTES >> 20} MiB")
        content = json.loads(storage.read_record(path))
        tasks = {str(task): dict(_scores(str(task), values)) for task, values in content["results"].items()}
        hidden = _children(content.get("group_subtasks") or {}, tasks)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        warn(f"{path}: left out: not a result of lm_eval: {error}")
        return None
    date = content.get("date")
    main = tuple(_main(scores) for task, scores in tasks.items() if scores and task not in hidden)
    scores = {name: value for values in tasks.values() for name, value in values.items()}
    is_dated = isinstance(date, int | float) and not isinstance(date, bool) and math.isfinite(date)
    return HarnessResults(step, float(date) if is_dated else 0.0, scores, main) if scores else None


def _at_end(part: str) -> re.Match[str] | None:
    return next((match for match in _STEP.finditer(part) if match.end() == len(part)), None)


def _scores(task: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    has_filters = any("," in key for key in values)
    for key, value in values.items():
        metric, comma, chosen = key.partition(",")
        if metric.endswith("_stderr") or metric in _NO_SCORES or (has_filters and not comma):
            continue
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield f"{task}/{metric}" + (f",{chosen}" if chosen not in ("", _NO_FILTER) else ""), float(value)


def _children(groups: Mapping[str, Any], tasks: Mapping[str, Mapping[str, float]]) -> set[str]:
    """Return the tasks of the groups that have a group score."""
    return {str(child) for group, children in groups.items() if tasks.get(group) for child in children}


def _main(scores: Mapping[str, float]) -> str:
    metrics = {name.rpartition("/")[2].partition(",")[0]: name for name in reversed(list(scores))}
    return next((metrics[metric] for metric in PREFERRED if metric in metrics), next(iter(scores)))
