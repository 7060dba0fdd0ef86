"""Find the numbers of nodes for which the batch and the layout of an elastic job divide among the ranks.

The number of nodes changes the data-parallel size. The global batch, the order of the samples and the learning rate schedule do
not change, because these are counted in samples; only the rounding of sums changes. So --global-batch-size is required. If
the batch does not divide among the available nodes, the job uses fewer nodes and the others stay idle.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from lt_shared.console import BadConfig, ToolError, UsageError
from lt_train.config import cluster

RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")


class NodeRange(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """Parse `4`, or `1-4` for any number of nodes in this range, into the least and the largest number."""

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
    """Return the numbers of nodes from `least` to `most` that `check` accepts without an error.

    If the number of GPUs per node is unknown, `check` is None and every number is accepted. Raises UsageError without a global
    batch size, BadConfig if no number works.
    """
    if not options["global_batch_size"]:
        raise UsageError(
            f"--nodes {least}-{most} without --global-batch-size: the batch would change with the number of nodes",
            "add --global-batch-size",
        )
    counts, problem = [], None
    for count in range(least, most + 1):
        try:
            if check is not None:
                check(count)
            counts.append(count)
        except ToolError as error:
            problem = problem or error
    if not counts:
        assert problem is not None
        raise BadConfig(f"--nodes {least}-{most}: no number of nodes works; on {least}: {problem}", problem.hint)
    return tuple(counts)
