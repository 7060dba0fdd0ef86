"""`lt-monitor gpu`: print one sample of nvidia-smi as events, one record per GPU.

nvidia-smi comes with the driver, so the job's environment needs no extra package. The header names the columns, because drivers
drop and rename some. Without a header (`noheader`) the columns must be QUERY in order. A GPU that the driver has lost becomes a
fault, because the job's log may not mention it for ten minutes.
"""

import re
import shutil

from lt_monitor.collect import external_programs
from lt_monitor.collect.sampling import fault, machine_name, missing, read_text, record
from lt_monitor.events.records import Record

SOURCE = "nvidia-smi"
QUERY = (
    "index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total", "temperature.gpu", "power.draw", "clocks.sm",
    "clocks_event_reasons.active", "ecc.errors.uncorrected.volatile.total",
)  # fmt: skip
# Before driver 535 the field has another name.
OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
MIB = 2**20
LINE_CHARACTERS = 200
FIELDS = {
    "utilization.gpu": ("utilization", 0.01),
    "memory.used": ("memory_bytes", MIB),
    "memory.total": ("memory_total_bytes", MIB),
    "temperature.gpu": ("temperature_celsius", 1),
    "power.draw": ("power_watts", 1),
    "clocks.sm": ("sm_clock_hertz", 1e6),
    "clocks.current.sm": ("sm_clock_hertz", 1e6),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected_errors", 1),
}
WHOLE = ("memory_bytes", "memory_total_bytes", "sm_clock_hertz", "ecc_uncorrected_errors")
LIMITS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
# The second column of QUERY: it identifies a row of an answer without a header.
_UUID = re.compile(r"(?:GPU|MIG)-[\w/-]{1,80}")
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,6})?")
_LOST = re.compile(r"Unable to determine the device handle|GPU is lost|Unknown Error|fallen off the bus", re.IGNORECASE)


def sample(path: str | None) -> list[Record]:
    """Return the records of a saved `nvidia-smi --query-gpu=... --format=csv` (`-` is stdin), or of this machine if None."""
    if path is not None:
        return parse(read_text(path), path)
    try:
        return parse(_ask(list(QUERY)), SOURCE)
    except external_programs.NoAnswer as error:
        if _LOST.search(str(error)):
            return [fault(SOURCE, "gpu-lost", "critical", str(error))]
        return [missing(SOURCE, str(error))]


def local() -> list[Record]:
    """Return the records of this machine's GPUs; none, silently, if nvidia-smi is missing or does not answer."""
    if shutil.which(SOURCE) is None:
        return []
    try:
        return [one for one in parse(_ask(list(QUERY)), SOURCE) if one["kind"] == "gpu"]
    except external_programs.NoAnswer:
        return []


def _ask(fields: list[str]) -> str:
    """Query nvidia-smi for `fields`. A field that this driver does not know is queried by its old name, or dropped."""
    while True:
        try:
            return external_programs.answer([SOURCE, f"--query-gpu={','.join(fields)}", "--format=csv,nounits"])
        except external_programs.NoAnswer as error:
            unknown = next((field for field in fields if f'"{field}" is not a valid field' in str(error)), None)
            if unknown is None:
                raise
            index = fields.index(unknown)
            fields[index : index + 1] = [OLD_NAMES[unknown]] if unknown in OLD_NAMES else []


def parse(text: str, file: str) -> list[Record]:
    """Return one record per GPU and a fault per lost GPU. Notes report unknown lines, and an output without a GPU."""
    records: list[Record] = []
    strange: list[str] = []
    columns: list[str] | None = None
    offset = 0
    for line in text.splitlines(keepends=True):
        cells = [cell.strip() for cell in line.split(",")]
        names = [cell.split(" [")[0] for cell in cells]
        if "index" in names and ("uuid" in names or "name" in names):
            columns = names
        elif _LOST.search(line):
            index = cells[0] if cells[0].isdigit() and len(cells[0]) < 6 else None
            details = {"gpu": int(index)} if index else {}
            records.append(fault(file, "gpu-lost", "critical", line.strip(), offset, **details))
        elif columns and len(cells) == len(columns):
            records.append(_gpu(dict(zip(columns, cells, strict=True)), file, offset))
        elif columns is None and len(cells) == len(QUERY) and cells[0].isdigit() and _UUID.fullmatch(cells[1]):
            records.append(_gpu(dict(zip(QUERY, cells, strict=True)), file, offset))
        elif line.strip():
            strange.append(line.strip())
        offset += len(line.encode())
    if not records and columns is None:
        expected = f"nvidia-smi --query-gpu=... --format=csv, or without a header --query-gpu={','.join(QUERY)}"
        return [missing(file, f"{file}: not the output of {expected}")]
    if strange:
        message = f"{file}: {len(strange)} lines are not rows of a GPU, the first: {strange[0][:LINE_CHARACTERS]}"
        return [*records, missing(file, message)]
    return records or [missing(file, f"{file}: no GPU in it")]


def _gpu(cells: dict[str, str], file: str, offset: int) -> Record:
    details: Record = {}
    if cells["index"].isdigit() and len(cells["index"]) < 6:
        details["gpu"] = int(cells["index"])
    details |= {name: cells[name] for name in ("uuid", "name") if cells.get(name, "[")[0:1] not in ("[", "")}
    for column, (field, factor) in FIELDS.items():
        match = _NUMBER.match(cells.get(column, ""))
        if match:
            value = float(match[0]) * factor
            details[field] = round(value) if field in WHOLE else round(value, 6)
    active = cells.get("clocks_event_reasons.active", cells.get("clocks_throttle_reasons.active", ""))
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", active):
        details["clock_limits"] = [name for bit, name in LIMITS.items() if int(active, 16) & bit]
    return record("gpu", file, offset, run=machine_name(), node=machine_name(), **details)
