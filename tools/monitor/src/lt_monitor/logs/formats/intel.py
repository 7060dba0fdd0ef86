"""Errors of Intel's accelerators: Gaudi (SynapseAI and the kernel's habanalabs) and GPUs (Level Zero, i915 and xe)."""

import re

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import fault, is_warning, regex
from lt_monitor.logs.lines import Line

# The first that matches, with its fault, cause and the record's action.
_ERRORS: tuple[tuple[re.Pattern[bytes], str, str, str | None], ...] = (
    # Another process still has the device.
    (regex(rb"synStatus ?= ?20 \[Device already acquired\]|Device already acquired"), "rendezvous", "root", None),
    (regex(rb"synStatus ?=? ?\d{1,3} \[[\w ]{1,40}\] Device acquire failed|Device acquire failed"), "gpu-lost", "root", None),
    (
        regex(
            rb"habanalabs .{0,60}(?:[Hh]eartbeat failed|[Dd]evice heartbeat|Failed to communicate with Device CPU"
            rb"|Device is NOT usable|Going to (?:hard )?reset|H/W (?:queues|state) .{0,40}stuck|failed to initialize the H/W)"
        ),
        "gpu-lost",
        "root",
        None,
    ),
    (regex(rb"habanalabs .{0,120}(?:[Uu]ncorrectable|\bDERR\b|double[- ]bit)"), "ecc", "root", None),
    (regex(rb"MODULE:PT_DEVMEM.{0,80}Allocation failed"), "out-of-memory", "root", None),
    (regex(rb"(?:UR|ZE|PI|DNNL)_(?:RESULT_)?ERROR_OUT_OF_(?:DEVICE_MEMORY|RESOURCES)"), "out-of-memory", "root", None),
    (regex(rb"(?:UR|ZE)_RESULT_ERROR_DEVICE_(?:LOST|REQUIRES_RESET)"), "gpu-lost", "root", None),
    (
        regex(
            rb"\b(?:i915|xe) [\da-f:.]{7,16}:.{0,60}(?:GPU HANG|Timedout job|[Dd]evice wedged|declared wedged|Resetting chip for"
            rb"|GT reset failed|memory cat error|CRITICAL: Xe has declared device)"
        ),
        "gpu-lost",
        "root",
        None,
    ),
    # The runtime's message before the exception, or in place of an exception.
    (
        regex(rb"\[(?:SYN_API|SYN_RECIPE|PT_BRIDGE|PT_SYNHELPER|HCL\w{0,20}|GC|PASS_MANAGER) {0,20}\]\[(?:error|critical)"),
        "cuda-error",
        "unknown",
        "synapse",
    ),
    (regex(rb"^Abort was called at \d{1,6} line in file:"), "killed", "root", None),
)


def error(line: Line) -> Record | None:
    text = line.text
    for pattern, name, cause, action in _ERRORS:
        match = pattern.search(text)
        if match is None:
            continue
        if is_warning(line, match.start()):
            return None
        return fault(line, name, cause, "critical", action=action, signal=6 if name == "killed" else None)
    return None
