"""The bandwidth measurement as a check, by the launcher's ranks or by ranks that are started for it."""

from typing import Any

from lt_shared.console import ToolError, note
from lt_train.preflight import bandwidth
from lt_train.preflight.bandwidth import GIGA, Measurement
from lt_train.preflight.check_interface import error_finding
from lt_train.preflight.check_runner import Result
from lt_train.process import device, rank_environment

NAME = "bandwidth.measure"
# Two ranks are the fewest that exchange data.
FEWEST = 2


def add_measurement(result: Result, options: dict[str, Any]) -> Result:
    """Add the findings of the bandwidth measurement to `result`; only the first rank has them."""
    try:
        measurement = _measure(options)
    except ToolError as problem:
        return result.with_findings(NAME, [error_finding(problem, "network")])
    if measurement is None:
        return result
    gigabytes_per_second = measurement.bus_bandwidth / GIGA
    note(f"network: all-reduce among {measurement.ranks} ranks at {gigabytes_per_second:.2f} GB/s per link")
    return result.with_findings(NAME, measurement.findings(options["save"]))


def _measure(options: dict[str, Any]) -> Measurement | None:
    device_type, save = device.resolve_device(options["device"]), options["save"]
    rank_env, node = rank_environment.find(), rank_environment.find_node()
    if rank_env is not None:
        return bandwidth.measure(rank_env, device_type, save)
    fewest = -(-FEWEST // node.nodes) if node else FEWEST
    ranks = options["ranks"] or (node and node.ranks) or device.default_ranks(device_type, fewest)
    return bandwidth.measure_from_this_machine(node, ranks, device_type, save)
