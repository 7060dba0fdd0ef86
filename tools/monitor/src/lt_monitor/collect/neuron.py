"""`lt-monitor neuron`: print one report of neuron-monitor as events.

A report becomes one record per NeuronCore in use, one per process that uses the runtime (memory, errors, latency), and one per
device (memory errors). neuron-monitor prints reports for ever; the first one comes after about five seconds and is used.
"""

import json
from collections.abc import Iterator
from typing import Any

from lt_monitor.collect import external_programs
from lt_monitor.collect.sampling import machine_name, missing, read_text, record
from lt_monitor.events.records import Record

SOURCE = "neuron-monitor"
AWS_PATH = "/opt/aws/neuron/bin/neuron-monitor"


def sample(path: str | None) -> list[Record]:
    """Return the records of saved reports, one JSON object per line (`-` is stdin), or of this machine if `path` is None."""
    if path is not None:
        return parse(read_text(path), path)
    try:
        return parse(_ask(), SOURCE)
    except external_programs.NoAnswer as error:
        return [missing(SOURCE, str(error))]


def _ask() -> str:
    try:
        return external_programs.first_line([SOURCE])
    except external_programs.NoAnswer as error:
        if "not installed" not in str(error):
            raise
        try:
            return external_programs.first_line([AWS_PATH])
        except external_programs.NoAnswer:
            raise error from None


def parse(text: str, file: str) -> list[Record]:
    """Return the records of every report in `text`. A note counts the lines that are not reports."""
    records: list[Record] = []
    offset = bad = 0
    for line in text.splitlines(keepends=True):
        if line.strip():
            report = _report(line)
            if report is None:
                bad += 1
            else:
                records += _records(report, file, offset)
        offset += len(line.encode())
    if bad or not records:
        reason = f"{bad} lines are not reports of neuron-monitor" if bad else "no NeuronCore is in use"
        records.append(missing(file, f"{file}: {reason}"))
    return records


def _report(line: str) -> Record | None:
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    sections = ("neuron_runtime_data", "system_data", "neuron_hardware_info")
    return report if isinstance(report, dict) and any(name in report for name in sections) else None


def _records(report: Record, file: str, offset: int) -> Iterator[Record]:
    def of(**details: object) -> Record:
        return record("neuron", file, offset, run=machine_name(), node=machine_name(), **details)

    for error in _errors(report):
        yield missing(file, f"{SOURCE}: {error}")
    for runtime in _list(report.get("neuron_runtime_data")):
        process = {"pid": runtime["pid"]} if isinstance(runtime.get("pid"), int) else {}
        content = _object(runtime.get("report"))
        used = _object(_object(content.get("memory_used")).get("neuron_runtime_used_bytes"))
        memory = _object(_object(used.get("usage_breakdown")).get("neuroncore_memory_usage"))
        cores = _object(_object(content.get("neuroncore_counters")).get("neuroncores_in_use"))
        for name, core in cores.items():
            if name.isdigit() and len(name) < 6:
                yield of(core=int(name), **process, **_core(_object(core), memory.get(name)))
        yield of(**process, **_runtime(used, content))
    hardware = _object(_object(report.get("system_data")).get("neuron_hw_counters"))
    for device in _list(hardware.get("neuron_devices")):
        counts = {key: _number(device.get(key)) or 0 for key in device if "_ecc_" in key}
        if isinstance(device.get("neuron_device_index"), int):
            uncorrected = sum(count for key, count in counts.items() if key.endswith("_uncorrected"))
            corrected = sum(count for key, count in counts.items() if key.endswith("_corrected"))
            yield of(
                device=device["neuron_device_index"], ecc_uncorrected_errors=uncorrected, ecc_corrected_errors=corrected
            )  # fmt: skip


def _core(core: Record, memory: object) -> Record:
    details: Record = {}
    utilization, flops = _number(core.get("neuroncore_utilization")), _number(core.get("effective_flops"))
    if utilization is not None:
        details["utilization"] = round(utilization / 100, 6)
    if flops is not None:
        details["flops_per_second"] = flops
    if isinstance(memory, dict):
        details["memory_bytes"] = sum(int(_number(size) or 0) for size in memory.values())
    return details


def _runtime(used: Record, content: Record) -> Record:
    details: Record = {}
    for name, field in (("neuron_device", "device_memory_bytes"), ("host", "host_memory_bytes")):
        value = _number(used.get(name))
        if value is not None:
            details[field] = int(value)
    stats = _object(content.get("execution_stats") or content.get("inference_stats"))
    summary = _object(stats.get("error_summary"))
    details["errors"] = {str(name): int(count) for name, value in summary.items() if (count := _number(value))}
    latency = _object(_object(stats.get("latency_stats")).get("total_latency"))
    for percentile in ("p50", "p99"):
        value = _number(latency.get(percentile))
        if value is not None:
            details[f"latency_{percentile}_seconds"] = value
    return details


def _errors(report: Record) -> Iterator[str]:
    """Yield the report's error messages, such as a driver that is not loaded."""
    for part in (report.get("neuron_hardware_info"), *_list(report.get("neuron_runtime_data"))):
        error = _object(part).get("error")
        if isinstance(error, str) and error:
            yield error


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30
    return value if is_number else None  # type: ignore[return-value]
