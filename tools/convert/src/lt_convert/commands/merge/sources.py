"""Which checkpoints are merged, and what each weighs: the arguments of the command, resolved."""

import dataclasses
import itertools
import math
import os
from collections.abc import Sequence

from lt_convert.commands.merge import weights
from lt_convert.formats import directories, run_checkpoints
from lt_convert.tensors.source_files import INCOMPLETE
from lt_shared.console import BadData, NoInput, UsageError, warn
from lt_shared.files import storage


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A checkpoint as it was named, and the weight that it was given, if any."""

    path: str
    weight: float | None


def chosen(words: Sequence[str], last: int | None) -> list[Chosen]:
    """Parse words PATH or PATH=WEIGHT. With `last`, the only word is a run, and its newest checkpoints are chosen.

    A word that names an existing file or directory is a path, whatever characters it has.
    """
    if last is None:
        return [_from_word(word) for word in words]
    if len(words) > 1:
        raise UsageError(f"--last {last} is for one run, and {len(words)} are named", "name the checkpoints themselves")
    return last_of_run(words[0], last)


def _from_word(word: str) -> Chosen:
    path, separator, text = word.rpartition("=")
    weight = weights.number(text)
    if not separator or not path or weight is None or (not storage.is_remote(word) and os.path.lexists(word)):
        return Chosen(word, None)
    return Chosen(path, weight)


def last_of_run(run: str, count: int) -> list[Chosen]:
    """The newest `count` complete checkpoints of a run, oldest first.

    Warns of checkpoints among them that are not complete. Raises NoInput when the run has fewer, BadData when its trainer has
    finished a newer one that is not complete: converting the run would fail, too.
    """
    path = directories.normalized(run)
    complete = run_checkpoints.complete(path)
    broken = run_checkpoints.damaged(path, complete)
    newer = [one for one in broken if not complete or one.iteration > complete[-1].iteration]
    if newer:
        raise BadData(f"{newer[-1].directory}: is not complete, and the newest checkpoint of the run", INCOMPLETE)
    if len(complete) < count:
        names = ", ".join(one.name for one in complete) or "none"
        raise NoInput(f"{run}: {len(complete)} complete checkpoints ({names}), --last asks for {count}")
    oldest = complete[-count].iteration
    left_out = {one.directory for one in (*broken, *run_checkpoints.unfinished(path, complete)) if one.iteration > oldest}
    for directory in sorted(left_out):
        warn(f"{directory}: is not complete: left out")
    return [Chosen(one.directory, None) for one in complete[-count:]]


def weigh(those: Sequence[Chosen], schedule: str | None) -> list[float]:
    """The weights, which sum to 1: as given, relative to their sum, or else by the `schedule`, the oldest checkpoint first.

    Raises UsageError where only some have a weight, or a schedule is named as well.
    """
    named_weights = [one.weight for one in those if one.weight is not None]
    if not named_weights:
        return weights.scheduled(schedule or weights.MEANS[0], len(those))
    if len(named_weights) < len(those):
        without = next(one.path for one in those if one.weight is None)
        raise UsageError(f"{without}: has no weight, and others have one", "give each one, as A=0.7 B=0.3, or none")
    if schedule is not None:
        raise UsageError(f"--weights {schedule}, and the checkpoints have weights of their own", "leave one of them out")
    return weights.normalized(named_weights)


def check_order(iterations: Sequence[int | None], paths: Sequence[str]) -> None:
    """Raise UsageError if the checkpoints are not in the order of training. Unknown iterations are passed over."""
    numbered = [(iteration, path) for iteration, path in zip(iterations, paths, strict=True) if iteration is not None]
    for (before, one), (after, other) in itertools.pairwise(numbered):
        if after < before:
            raise UsageError(
                f"{one} is of iteration {before}, and {other} after it of {after}: these weights depend on the order",
                "name the oldest checkpoint first",
            )


def sum_is_one(weighted: Sequence[Chosen]) -> bool:
    return math.isclose(math.fsum(one.weight or 0.0 for one in weighted), 1.0, abs_tol=1e-6)
