"""Parse the range of nodes for an elastic job. `lt_train.planner.node_counts` finds the usable numbers."""

import re
from typing import Any

import click

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
