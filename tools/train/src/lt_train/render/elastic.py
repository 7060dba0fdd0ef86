"""A job that runs on as many nodes as there are: which numbers of nodes its batch and its layout divide among.

More or fewer nodes are more or fewer data-parallel ranks. The global batch, the order of the samples and the schedule of the
learning rate stay as they are, because all three are counted in samples; only the rounding of sums changes. So the global batch
has to be given, and a number of nodes among whose ranks it does not divide is left out: the job leaves a node idle then.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from lt_shared.console import BadConfig, ToolError, UsageError
from lt_train.config import cluster

RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


class NodeRange(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """`4`, or `1-4` for any number of nodes between; the value is the least and the most."""

    name = "nodes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = RANGE.fullmatch(str(value))
        bounds = match.groups() if match else (value, value)
        least, most = (int(cluster.NODES(bound, param, ctx)) for bound in bounds)
        if least > most:
            self.fail(f"{value!r}: the first number is larger than the second", param, ctx)
        return least, most


def usable_counts(least: int, most: int, options: Mapping[str, Any], check: Callable[[int], None] | None) -> tuple[int, ...]:
    """The numbers of nodes from `least` to `most` on which the run works, as `check` says; None is a machine not known here.

    Raises UsageError without a global batch size, BadConfig when no number works.
    """
    if not options["global_batch_size"]:
        raise UsageError(
            f"--nodes {least}-{most} without --global-batch-size: the batch would change with the number of nodes",
            "add --global-batch-size",
        )
    found, problem = [], None
    for count in range(least, most + 1):
        try:
            if check is not None:
                check(count)
            found.append(count)
        except ToolError as error:
            problem = problem or error
    if not found:
        assert problem is not None
        raise BadConfig(f"--nodes {least}-{most}: no number of nodes works; on {least}: {problem}", problem.hint)
    return tuple(found)
