"""The measurement of the network as one more check: by the ranks of a launcher, or by ranks that are started here."""

from typing import Any

from lt_shared.console import ToolError, note
from lt_train.preflight import bandwidth
from lt_train.preflight.bandwidth import GIGA, Measurement
from lt_train.preflight.check_interface import of
from lt_train.preflight.check_runner import Result
from lt_train.process import device, rank_environment

NAME = "bandwidth.measure"
# Two ranks are the fewest that exchange data.
FEWEST = 2


def add(result: Result, options: dict[str, Any]) -> Result:
    """Add the findings of the bandwidth measurement to `result`; only the first rank has them."""
    try:
        found = _measure(options)
    except ToolError as problem:
        return result.with_findings(NAME, [of(problem, "network")])
    if found is None:
        return result
    note(f"network: all-reduce among {found.ranks} ranks at {found.bus_bandwidth / GIGA:.2f} GB/s per link")
    return result.with_findings(NAME, found.findings(options["save"]))


def _measure(options: dict[str, Any]) -> Measurement | None:
    where, save = device.resolve_device(options["device"]), options["save"]
    rank_env, node = rank_environment.find(), rank_environment.find_node()
    if rank_env is not None:
        return bandwidth.measure(rank_env, where, save)
    fewest = -(-FEWEST // node.nodes) if node else FEWEST
    wanted = options["ranks"] or (node and node.ranks) or device.default_ranks(where, fewest)
    return bandwidth.on_this_machine(node, wanted, where, save)
