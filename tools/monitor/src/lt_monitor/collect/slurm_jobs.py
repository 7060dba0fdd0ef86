"""`lt-monitor slurm`: the state of Slurm jobs as events, with one call of squeue.

The record of a job carries the run's name that its log would have, so that `alert` knows whether a silent run should be
running. `squeue --json` comes first; its shape changed with every data parser (a state is a text or a list, a number may be an
object), and old versions do not have it, so plain columns are the second choice. Jobs that squeue has forgotten are asked for
from sacct, and where accounting is off from scontrol.
"""

import datetime
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from lt_monitor.collect import external_programs
from lt_monitor.collect.sampling import missing, read_text, record
from lt_monitor.events.records import Record
from lt_monitor.logs import log_files

SOURCE = "squeue"
COLUMNS = "%F|%K|%T|%V|%S|%e|%D|%N|%u|%P|%r|%Z|%j"
COLUMN_NAMES = (
    "array_job_id", "array_task_id", "job_state", "submit_time", "start_time", "end_time", "node_count", "nodes", "user_name",
    "partition", "state_reason", "current_working_directory", "name",
)  # fmt: skip
SACCT_FIELDS = "JobIDRaw,JobID,JobName,State,ExitCode,Submit,Start,End,NNodes,NodeList,User,Partition,WorkDir"
SACCT_NAMES = {
    "JobIDRaw": "job_id", "JobID": "shown_id", "JobName": "name", "State": "job_state", "ExitCode": "exit_code",
    "Submit": "submit_time", "Start": "start_time", "End": "end_time", "NNodes": "node_count", "NodeList": "nodes",
    "User": "user_name", "Partition": "partition", "WorkDir": "current_working_directory",
}  # fmt: skip
SCONTROL_NAMES = {
    "JobId": "job_id", "ArrayJobId": "array_job_id", "ArrayTaskId": "array_task_id", "JobName": "name", "JobState": "job_state",
    "Reason": "state_reason", "Restarts": "restart_cnt", "ExitCode": "exit_code", "SubmitTime": "submit_time",
    "StartTime": "start_time", "EndTime": "end_time", "NumNodes": "node_count", "NodeList": "nodes", "UserId": "user_name",
    "Partition": "partition", "WorkDir": "current_working_directory", "StdOut": "standard_output",
    "TRES": "tres_alloc_str", "AllocTRES": "tres_alloc_str",
}  # fmt: skip
_JOB = re.compile(r"\d{1,12}(?:_\d{1,9})?")
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:]{0,30})=")


def sample(path: str | None, jobs: Sequence[str]) -> list[Record]:
    """The records of a saved answer of squeue, sacct or scontrol (`-` is stdin), or of this cluster for None.

    `jobs` leaves only these, such as 77 or 77_3 (77 also means all tasks of that array).
    """
    if path is not None:
        found = parse(read_text(path), path)
        return [each for each in found if each["kind"] != "job" or not jobs or _is_wanted(each, jobs)]
    try:
        found = _queue()
    except external_programs.NoAnswer as error:
        return [missing(SOURCE, str(error))]
    found = [each for each in found if each["kind"] != "job" or not jobs or _is_wanted(each, jobs)]
    absent = [job for job in jobs if not any(_is_wanted(each, [job]) for each in found)]
    return found + _finished(absent)


def is_job(text: str) -> bool:
    return bool(_JOB.fullmatch(text))


def _queue() -> list[Record]:
    try:
        found = parse(external_programs.answer(["squeue", "--json"]), SOURCE)
    except external_programs.NoAnswer as error:
        if "--json" not in str(error) and "unrecognized" not in str(error) and "serializer" not in str(error):
            raise
        columns = external_programs.answer(["squeue", "-h", "-r", "-o", COLUMNS])
        found = _jobs((_columns(line) for line in columns.splitlines()), SOURCE)
    return found


def _finished(jobs: Sequence[str]) -> list[Record]:
    """Jobs that are no longer queued."""
    found: list[Record] = []
    for job in jobs:
        answers = (
            ["sacct", "-X", "-P", "-D", "-j", job, "-o", SACCT_FIELDS],
            ["scontrol", "-o", "show", "job", job],
        )
        reasons = []
        for arguments in answers:
            try:
                records = parse(external_programs.answer(arguments), arguments[0])
            except external_programs.NoAnswer as error:
                reasons.append(str(error))
                continue
            if any(each["kind"] == "job" for each in records):
                found += records
                break
            reasons.append(f"{arguments[0]}: no such job")
        else:
            found.append(missing(SOURCE, f"job {job}: {'; '.join(reasons)}"))
    return found


def parse(text: str, file: str) -> list[Record]:
    """The jobs in an answer of `squeue --json`, `sacct --json`, `sacct -P` with its header, or `scontrol -o show job`."""
    if text.lstrip().startswith("{"):
        return _parse_json(text, file)
    lines = text.splitlines()
    if lines and "JobIDRaw" in lines[0].split("|"):
        names = [SACCT_NAMES.get(name, name) for name in lines[0].split("|")]
        return _jobs((dict(zip(names, line.split("|"), strict=False)) for line in lines[1:]), file)
    jobs = [_scontrol(line) for line in _joined(lines) if line.lstrip().startswith("JobId=")]
    return _jobs(jobs, file) if jobs else [missing(file, f"{file}: no job in it")]


def _parse_json(text: str, file: str) -> list[Record]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return [missing(file, f"{file}: not the JSON of squeue or sacct")]
    jobs, errors = answer.get("jobs"), answer.get("errors")
    if not jobs and isinstance(errors, list) and errors:
        # Without a controller squeue still ends with 0 and no jobs.
        said = _object(errors[0])
        return [missing(file, f"{file}: {_text(said.get('description')) or _text(said.get('error')) or 'failed'}")]
    if not isinstance(jobs, list):
        return [missing(file, f"{file}: JSON without jobs")]
    return _jobs((job for job in jobs if isinstance(job, dict)), file)


def _columns(line: str) -> Record:
    """A line of squeue's columns; the job's name comes last because it may have bars in it."""
    return dict(zip(COLUMN_NAMES, line.split("|", len(COLUMN_NAMES) - 1), strict=False))


def _joined(lines: Iterable[str]) -> list[str]:
    """`scontrol show job` without -o has many lines a job, and an empty one between two."""
    jobs: list[list[str]] = []
    for line in lines:
        if line.startswith("JobId=") or not jobs:
            jobs.append([])
        jobs[-1].append(line.strip())
    return [" ".join(job) for job in jobs]


def _scontrol(line: str) -> Record:
    """`Key=value` pairs; a value extends to the next key, so it may contain spaces."""
    keys = list(_PAIR.finditer(line))
    job: Record = {}
    for key, following in zip(keys, [*keys[1:], None], strict=True):
        value = line[key.end() : following.start() if following else None].strip()
        if key[1] in SCONTROL_NAMES and value not in ("", "(null)", "Unknown", "N/A", "None"):
            job.setdefault(SCONTROL_NAMES[key[1]], value)
    if "user_name" in job:
        job["user_name"] = job["user_name"].split("(")[0]
    return job


def _jobs(jobs: Iterable[Record], file: str) -> list[Record]:
    return [found for job in jobs if (found := _job(job, file)) is not None]


def _job(job: Record, file: str) -> Record | None:
    """The record of one job, whatever the shape of its fields; None for what has no id or state."""
    number, array, task = _whole(job.get("job_id")), _whole(job.get("array_job_id")), _whole(job.get("array_task_id"))
    shown = f"{array}_{task}" if array and task is not None else str(number or array or "")
    if not (number or array):
        shown = str(job.get("shown_id", ""))
    state = _state(job)
    if not is_job(shown) or not state:
        return None
    log = _log(job, shown, number or array or 0, array, task)
    details: Record = {"job": shown, "state": state}
    details |= {field: text for field in ("name", "partition") if (text := _text(job.get(field)))}
    details |= {"user": user} if (user := _text(job.get("user_name") or job.get("user"))) else {}
    reason = _text(job.get("state_reason")) or _text(_object(job.get("state")).get("reason"))
    if reason and reason != "None":
        details["reason"] = reason
    if nodes := _text(job.get("nodes")):
        details["nodes"] = nodes
    if (count := _whole(job.get("node_count") or job.get("allocation_nodes"))) is not None:
        details["node_count"] = count
    if (gpus := _gpus(_text(job.get("tres_alloc_str")) or _tres(job))) is not None:
        details["gpus"] = gpus
    if (restarts := _whole(job.get("restart_cnt"))) is not None:
        details["restarts"] = restarts
    times = _object(job.get("time"))
    for field, key in (("submit_time", "submission"), ("start_time", "start"), ("end_time", "end")):
        moment = _moment(job.get(field) if field in job else times.get(key))
        if moment and (field != "end_time" or state not in ("RUNNING", "PENDING")):
            details[field] = moment
    if state not in ("RUNNING", "PENDING"):
        details |= _exit(job.get("exit_code"))
    if log:
        details["log"] = log
    return record("job", file, run=log_files.run_name(log) if log else f"job-{shown}", **details)


def _is_wanted(found: Record, jobs: Sequence[str]) -> bool:
    return found["kind"] == "job" and any(found["job"] == job or found["job"].split("_")[0] == job for job in jobs)


def _state(job: Record) -> str:
    """`RUNNING` from text, from a list of states, or from sacct's object; `CANCELLED by 1000` without the rest."""
    state = job.get("job_state", job.get("state"))
    if isinstance(state, dict):
        state = state.get("current")
    if isinstance(state, list):
        state = state[0] if state else ""
    words = _text(state).split()
    return words[0].rstrip("+") if words else ""


def _log(job: Record, shown: str, number: int, array: int | None, task: int | None) -> str:
    """The file of the job's output: Slurm before 24.05 gives the pattern only, and nothing for its default."""
    expanded = _text(job.get("stdout_expanded"))
    directory = _text(job.get("current_working_directory"))
    pattern = expanded or _text(job.get("standard_output")) or _text(job.get("stdout"))
    if not pattern:
        if not directory:
            return ""
        pattern = "slurm-%A_%a.out" if task is not None and array else "slurm-%j.out"
    if not expanded:
        values = {
            "%": "%", "A": str(array or number), "a": "4294967294" if task is None else str(task), "j": str(number),
            "J": str(number), "x": _text(job.get("name")), "u": _text(job.get("user_name")), "n": "0", "t": "0",
            "N": _text(job.get("batch_host")),
        }  # fmt: skip
        pattern = re.sub(r"%(\d{0,2})([%AajJxuntN])", lambda match: values[match[2]].zfill(int(match[1] or 0)), pattern)
    return pattern if pattern.startswith("/") or not directory else f"{directory.rstrip('/')}/{pattern}"


def _exit(value: object) -> Record:
    """`exit_code` and `signal` from `3:0`, from a wait status, or from an object of the newer parsers."""
    code = signal = None
    if isinstance(value, dict):
        code = _whole(value.get("return_code"))
        signal = _whole(_object(value.get("signal")).get("id", _object(value.get("signal")).get("signal_id")))
    elif isinstance(value, str) and re.fullmatch(r"\d{1,3}:\d{1,3}", value):
        code, signal = (int(part) for part in value.split(":"))
    elif isinstance(value, int):
        code, signal = value >> 8, value & 0x7F
    return {"exit_code": code} | ({"signal": signal} if signal else {}) if code is not None else {}


def _moment(value: object) -> str | None:
    """ISO 8601 with a zone, from seconds since 1970 or from Slurm's local time; None for what is not set."""
    seconds = _whole(value)
    try:
        if seconds:
            return datetime.datetime.fromtimestamp(seconds).astimezone().isoformat()
        return datetime.datetime.fromisoformat(_text(value)).astimezone().isoformat() if _text(value)[:2] == "20" else None
    except (ValueError, OverflowError, OSError):
        return None


def _gpus(tres: str) -> int | None:
    """GPUs in `cpu=96,gres/gpu=8,gres/gpu:h100=8`."""
    match = re.search(r"(?:^|,)gres/gpu=(\d{1,7})", tres) or re.search(r"(?:^|,)gres/gpu:[^=,]{1,60}=(\d{1,7})", tres)
    return int(match[1]) if match else None


def _tres(job: Record) -> str:
    """sacct's list of allocated resources as the text that squeue has."""
    allocated = _object(job.get("tres")).get("allocated")
    parts = [_object(each) for each in allocated] if isinstance(allocated, list) else []
    names = (f"{part.get('type')}{'/' + str(part['name']) if part.get('name') else ''}={part.get('count')}" for part in parts)
    return ",".join(names)


def _whole(value: object) -> int | None:
    """A whole number that may be text, or an object with `set`, `infinite` and `number`."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}(?:-\d{1,15})?", value):
        value = int(value.split("-")[0])
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) and "\0" not in value else ""


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
