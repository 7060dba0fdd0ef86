"""Find the numbers of nodes that allow the batch and the layout of an elastic job.

The number of nodes changes the data-parallel size. The global batch, the order of the samples and the learning rate schedule do
not change, because these are counted in samples; only the rounding of sums changes. So --global-batch-size is required. If
the batch does not divide among the available nodes, the job uses fewer nodes and the others stay idle.
"""

from collections.abc import Callable
from typing import Any

from lt_shared.console import BadConfig, ToolError


def usable_counts(least: int, most: int, check: Callable[[int], Any] | None, option: str) -> tuple[int, ...]:
    """Return the numbers of nodes from `least` to `most` that `check` accepts without an error.

    If the number of GPUs per node is unknown, `check` is None and every number is accepted. Raises BadConfig if no number works,
    with the `option` that asks for these numbers.
    """
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
        raise BadConfig(f"{option}: no number of nodes works; on {least}: {problem}", problem.hint)
    return tuple(counts)
