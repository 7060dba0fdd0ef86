"""`lt-monitor slurm`: print the state of Slurm jobs as events, with one call of squeue.

A job's record carries the run name that its log would have, so `alert` knows whether a silent run should be running. `squeue
--json` is tried first. Its shape changed with every data parser (a state is a text or a list, a number may be an object), and old
versions lack it, so plain columns are the second choice. For a job that squeue has forgotten, scontrol has the same data and is
asked first, then sacct, whose answers complete each other. Its text subtracts 128 from every code from 128 on (before 25.11), and
`sacct --json` of 22.05 reports SUCCESS and 0 for every exit code. sacct knows the log's pattern since 24.05, before that only if
the command line named it.
"""

import json
import re
from collections.abc import Iterable, Sequence

from lt_monitor.collect import external_programs, queue_table, submit_line
from lt_monitor.collect.sampling import missing, read_text, record
from lt_monitor.collect.slurm_values import gpu_count, mapping, moment, plain_text, whole_number
from lt_monitor.events.records import Record
from lt_monitor.logs import log_files

SOURCE = "squeue"
COLUMNS = "%F|%K|%T|%V|%S|%e|%D|%N|%u|%P|%r|%Z|%j"
COLUMN_NAMES = (
    "array_job_id", "array_task_id", "job_state", "submit_time", "start_time", "end_time", "node_count", "nodes", "user_name",
    "partition", "state_reason", "current_working_directory", "name",
)  # fmt: skip
SACCT_FIELDS = "JobIDRaw,JobID,JobName,State,ExitCode,Submit,Start,End,NNodes,NodeList,User,Partition,WorkDir"
# Columns of newer versions: since 24.05, and since 21.08. The command line is the last column because it may contain bars.
SACCT_NEWER_FIELDS = ("StdOut,SubmitLine", "SubmitLine")
SACCT_NAMES = {
    "JobIDRaw": "job_id", "JobID": "shown_id", "JobName": "name", "State": "job_state", "ExitCode": "exit_code",
    "Submit": "submit_time", "Start": "start_time", "End": "end_time", "NNodes": "node_count", "NodeList": "nodes",
    "User": "user_name", "Partition": "partition", "WorkDir": "current_working_directory",
    "SubmitLine": "submit_line", "AllocTRES": "tres_alloc_str", "StdOut": "stdout", "Restarts": "restart_cnt",
}  # fmt: skip
SCONTROL_NAMES = {
    "JobId": "job_id", "ArrayJobId": "array_job_id", "ArrayTaskId": "array_task_id", "JobName": "name", "JobState": "job_state",
    "Reason": "state_reason", "Restarts": "restart_cnt", "ExitCode": "exit_code", "SubmitTime": "submit_time",
    "StartTime": "start_time", "EndTime": "end_time", "NumNodes": "node_count", "NodeList": "nodes", "UserId": "user_name",
    "Partition": "partition", "WorkDir": "current_working_directory", "StdOut": "standard_output",
    "TRES": "tres_alloc_str", "AllocTRES": "tres_alloc_str", "BatchHost": "batch_host", "HetJobId": "het_job_id",
    "HetJobOffset": "het_job_offset",
}  # fmt: skip
_JOB = re.compile(r"\d{1,12}(?:_\d{1,9}|\+\d{1,6})?")
# sacct's JobID: 77, 88_3, 88_[4-9%2] of tasks that wait, 70+1 of a heterogeneous job.
_SHOWN = re.compile(
    r"(?P<job>\d{1,12})|(?P<array>\d{1,12})_(?:(?P<task>\d{1,9})|\[.{1,200})|(?P<leader>\d{1,12})\+(?P<offset>\d{1,6})"
)
_RULER = re.compile(r"-+(?: +-+)* *")
# Longer states end with + in narrow columns.
_LONG_STATES = (
    "CANCELLED",
    "COMPLETED",
    "COMPLETING",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "REQUEUED",
    "TIMEOUT",
)
_WHOLE_STATES = {*_LONG_STATES, "PENDING", "RUNNING", "SUSPENDED", "FAILED", "DEADLINE"} - {"COMPLETING", "REQUEUED"}
_HIGHEST_SIGNAL = 64
# Slurm's number for a job that is no task of an array. It also fills in the pattern %a.
_NO_TASK = 4294967294
_PAIR = re.compile(r"(?:^|\s)([A-Za-z][\w/:]{0,30})=")


def sample(path: str | None, jobs: Sequence[str]) -> list[Record]:
    """Return the records of a saved output of squeue, sacct or scontrol (`-` is stdin), or of this cluster if `path` is None.

    If `jobs` is not empty, only these jobs are returned: 77_3, or 77 with every task of that array; 70+1, or 70 with every
    component of that heterogeneous job.
    """
    if path is not None:
        return _requested(parse(read_text(path), path), jobs)
    try:
        records = _requested(_queue(), jobs)
    except external_programs.NoAnswer as error:
        return [missing(SOURCE, str(error))]
    absent = [job for job in jobs if not any(_is_requested(record, [job]) for record in records)]
    return records + _finished(absent)


def _requested(records: list[Record], jobs: Sequence[str]) -> list[Record]:
    """Drop the records of jobs that were not requested; other records stay."""
    return [record for record in records if record["kind"] != "job" or not jobs or _is_requested(record, jobs)]


def is_job(text: str) -> bool:
    return bool(_JOB.fullmatch(text))


def _queue() -> list[Record]:
    try:
        return parse(external_programs.answer(["squeue", "--json"]), SOURCE)
    except external_programs.NoAnswer as error:
        if "--json" not in str(error) and "unrecognized" not in str(error) and "serializer" not in str(error):
            raise
        columns = external_programs.answer(["squeue", "-h", "-r", "-o", COLUMNS])
        return _jobs((_columns(line) for line in columns.splitlines()), SOURCE)


def _finished(jobs: Sequence[str]) -> list[Record]:
    """Return the records of jobs that are no longer queued, from scontrol or sacct."""
    job_records: list[Record] = []
    for job in jobs:
        reasons: list[str] = []
        records = _answered(["scontrol", "-o", "show", "job", job], reasons) or _from_accounting(job, reasons)
        job_records += records or [missing(SOURCE, f"job {job}: {'; '.join(reasons)}")]
    return job_records


def _answered(arguments: Sequence[str], reasons: list[str]) -> list[Record]:
    """Return the jobs that a program prints, or none; then `reasons` gets why."""
    try:
        records = parse(external_programs.answer(arguments), arguments[0])
    except external_programs.NoAnswer as error:
        reasons.append(str(error))
        return []
    jobs = [record for record in records if record["kind"] == "job"]
    if not jobs:
        reasons.append(f"{arguments[0]}: no such job")
    return jobs


def _from_accounting(job: str, reasons: list[str]) -> list[Record]:
    """Return sacct's records of a job: its text, with the exit codes and logs that its JSON knows better."""
    text: list[Record] = []
    for newer_fields in (*SACCT_NEWER_FIELDS, ""):
        problems: list[str] = []
        fields = f"{SACCT_FIELDS},{newer_fields}" if newer_fields else SACCT_FIELDS
        text = _answered(["sacct", "-X", "-P", "-D", "-j", job, "-o", fields], problems)
        # An older sacct names the field that it does not know.
        if text or not any(field in problem for field in newer_fields.split(",") if field for problem in problems):
            reasons += problems
            break
    if text and all("log" in record and "exit_codes" not in record for record in text):
        return text
    json_records = {record["job"]: record for record in _answered(["sacct", "--json", "-D", "-j", job], [])}
    return [_completed(record, json_records.get(record["job"], {})) for record in text]


def _completed(text_record: Record, json_record: Record) -> Record:
    """Add to a record of sacct's text the exit code and the log that sacct's JSON has."""
    names = ("exit_code", "signal", *(() if "log" in text_record or "log" not in json_record else ("log", "run")))
    completed = text_record | {name: json_record[name] for name in names if name in json_record}
    return {name: value for name, value in completed.items() if name != "exit_codes" or "exit_code" not in completed}


def parse(text: str, file: str) -> list[Record]:
    """Return the jobs in the output of squeue, sacct (with headings) or scontrol show job, as JSON or as text."""
    if text.lstrip().startswith("{"):
        return _parse_json(text, file)
    lines = text.splitlines()
    if lines and (header := lines[0].split("|")) and not {"JobIDRaw", "JobID"}.isdisjoint(header):
        return _accounted((line.split("|", len(header) - 1) for line in lines[1:]), header, file)
    if len(lines) > 1 and _RULER.fullmatch(lines[1]) is not None and "JobID" in lines[0]:
        spans = [column.span() for column in re.finditer(r"-+", lines[1])]
        header, *rows = [[line[begin:end].strip() for begin, end in spans] for line in (lines[0], *lines[2:])]
        return _accounted(rows, header, file)
    jobs: list[Record] = [dict(job) for job in queue_table.jobs_in(lines)]
    jobs += [_scontrol(line) for line in _joined(lines) if line.lstrip().startswith("JobId=")]
    return _jobs(jobs, file) if jobs else [missing(file, f"{file}: no job in it")]


def _accounted(rows: Iterable[Sequence[str]], header: Sequence[str], file: str) -> list[Record]:
    """Return the jobs in sacct's columns."""
    names = [SACCT_NAMES.get(name, name) for name in header]
    return _jobs(_last_of_each([{**dict(zip(names, row, strict=False)), "is_accounted": True} for row in rows]), file)


def _last_of_each(jobs: Sequence[Record]) -> list[Record]:
    """Keep the last record per job: accounting (unlike the queue) has one record per start of a requeued job."""
    last: dict[str, Record] = {}
    for job in jobs:
        identity = str(job.get("job_id") or job.get("shown_id"))
        earlier = last.pop(identity, None)
        last[identity] = job if earlier is None else {**job, "restart_cnt": earlier.get("restart_cnt", 0) + 1}
    return list(last.values())


def _parse_json(text: str, file: str) -> list[Record]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return [missing(file, f"{file}: not the JSON of squeue or sacct")]
    jobs, errors = answer.get("jobs"), answer.get("errors")
    if not jobs and isinstance(errors, list) and errors:
        # Without a controller squeue still ends with 0 and no jobs.
        error = mapping(errors[0])
        return [missing(file, f"{file}: {plain_text(error.get('description')) or plain_text(error.get('error')) or 'failed'}")]
    if not isinstance(jobs, list):
        return [missing(file, f"{file}: JSON without jobs")]
    objects = [{**job, "is_accounted": "job_state" not in job} for job in jobs if isinstance(job, dict)]
    is_accounted = bool(objects) and all(job["is_accounted"] for job in objects)
    return _jobs(_last_of_each(objects) if is_accounted else objects, file)


def _columns(line: str) -> Record:
    """Split a line of squeue's columns. The job's name comes last because it may contain bars."""
    return dict(zip(COLUMN_NAMES, line.split("|", len(COLUMN_NAMES) - 1), strict=False))


def _joined(lines: Iterable[str]) -> list[str]:
    """Join a job's lines: `scontrol show job` without -o prints many lines per job and an empty line between jobs."""
    jobs: list[list[str]] = []
    for line in lines:
        if line.startswith("JobId=") or not jobs:
            jobs.append([])
        jobs[-1].append(line.strip())
    return [" ".join(job) for job in jobs]


def _scontrol(line: str) -> Record:
    """Parse `Key=value` pairs. A value extends to the next key, so it may contain spaces."""
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
    return [record for job in jobs if (record := _job(job, file)) is not None]


def _job(job: Record, file: str) -> Record | None:
    """Return a job's record from any shape that Slurm prints; None if it has no id or no state."""
    in_array = mapping(job.get("array"))
    number = whole_number(job.get("job_id"))
    array = whole_number(job.get("array_job_id")) or whole_number(in_array.get("job_id"))
    task = whole_number(job.get("array_task_id", in_array.get("task_id")))
    task = None if task == _NO_TASK else task
    if (numbers := _SHOWN.fullmatch(plain_text(job.get("shown_id")))) is not None:
        # An array task, or a component of a heterogeneous job, whose script and log belong to the leader.
        array, task = whole_number(numbers["array"]) or array, whole_number(numbers["task"]) if numbers["task"] else task
        number = number or whole_number(numbers["job"])
    shown = f"{array}_{task}" if array and task is not None else str(number or array or "")
    if not (number or array):
        shown = str(job.get("shown_id", ""))
    state = _state(job)
    if not is_job(shown) or not state:
        return None
    leader = (
        whole_number(numbers["leader"])
        if numbers is not None
        else whole_number(job.get("het_job_id") or mapping(job.get("het")).get("job_id"))
    )
    log = _log(job, shown, leader or number or array or 0, array, task)
    details: Record = {"job": shown, "state": state}
    details |= {field: text for field in ("name", "partition") if (text := plain_text(job.get(field)))}
    if leader and (offset := _offset(job, numbers)) is not None:
        details["component"] = f"{leader}+{offset}"
    details |= {"user": user} if (user := plain_text(job.get("user_name") or job.get("user"))) else {}
    reason = plain_text(job.get("state_reason")) or plain_text(mapping(job.get("state")).get("reason"))
    if reason and reason != "None":
        details["reason"] = reason
    if (nodes := plain_text(job.get("nodes"))) and not nodes.startswith("None"):
        details["nodes"] = nodes
    if (count := whole_number(job.get("node_count") or job.get("allocation_nodes"))) is not None:
        details["node_count"] = count
    if (gpus := gpu_count(plain_text(job.get("tres_alloc_str")) or _tres(job))) is not None:
        details["gpus"] = gpus
    if (restarts := whole_number(job.get("restart_cnt"))) is not None:
        details["restarts"] = restarts
    times = mapping(job.get("time"))
    for field, key in (("submit_time", "submission"), ("start_time", "start"), ("end_time", "end")):
        time = moment(job.get(field) if field in job else times.get(key))
        if time and (field != "end_time" or state not in ("RUNNING", "PENDING")):
            details[field] = time
    if state not in ("RUNNING", "PENDING"):
        details |= _accounted_exit(job.get("exit_code"), state) if job.get("is_accounted") else _exit(job.get("exit_code"))
    if log:
        details["log"] = log
    return record("job", file, run=log_files.run_name(log) if log else f"job-{shown}", **details)


def _is_requested(record: Record, jobs: Sequence[str]) -> bool:
    if record["kind"] != "job":
        return False
    component = str(record.get("component", ""))
    names = (record["job"], record["job"].split("_")[0], component, component.split("+")[0])
    return any(job in names for job in jobs)


def _offset(job: Record, numbers: re.Match[str] | None) -> int | None:
    """Return the number of a component in its heterogeneous job; None if Slurm does not say it."""
    if numbers is not None:
        return whole_number(numbers["offset"])
    return whole_number(job.get("het_job_offset", mapping(job.get("het")).get("job_offset")))


def _state(job: Record) -> str:
    """Return the state, e.g. RUNNING, from a text, a list of states or sacct's object; CANCELLED for `CANCELLED by 1000`."""
    state = job.get("job_state", job.get("state"))
    if isinstance(state, dict):
        state = state.get("current")
    if isinstance(state, list):
        # A state may come with flags such as COMPLETING and REQUEUED.
        state = next((one for one in state if one in _WHOLE_STATES), state[0] if state else "")
    words = plain_text(state).split()
    word = words[0] if words else ""
    if not word.endswith("+"):
        return word
    return next((name for name in _LONG_STATES if name.startswith(word[:-1])), word[:-1])


def _log(job: Record, shown: str, number: int, array: int | None, task: int | None) -> str:
    """Return the file of the job's output. Slurm before 24.05 reports only the pattern, and nothing for the default pattern."""
    expanded = plain_text(job.get("stdout_expanded"))
    directory = plain_text(job.get("current_working_directory") or job.get("working_directory"))
    restarts = whole_number(job.get("restart_cnt"))
    pattern = (
        expanded
        or plain_text(job.get("standard_output"))
        or plain_text(job.get("stdout"))
        or submit_line.output(plain_text(job.get("submit_line")))
    )
    if not pattern:
        if not directory or job.get("is_accounted"):
            # Accounting does not say whether the script had an #SBATCH --output.
            return ""
        pattern = "slurm-%A_%a.out" if task is not None and array else "slurm-%j.out"
    if not expanded:
        host = plain_text(job.get("batch_host")) or submit_line.first_host(plain_text(job.get("nodes")))
        pattern = submit_line.expanded(pattern, {
            "%": "%", "A": str(array or number), "a": str(_NO_TASK if task is None else task), "j": str(number),
            "J": str(number), "x": plain_text(job.get("name")),
            "u": plain_text(job.get("user_name") or job.get("user")), "n": "0", "t": "0", "s": "batch",
            "b": "" if task is None else str(task % 10), "N": host,
            "r": "" if restarts is None else str(restarts),
        })  # fmt: skip
    return pattern if not pattern or pattern.startswith("/") or not directory else f"{directory.rstrip('/')}/{pattern}"


def _exit(value: object) -> Record:
    """Return `exit_code` and `signal` from the text `3:0`, a wait status, or an object of the newer data parsers."""
    code = signal = None
    if isinstance(value, dict):
        code = whole_number(value.get("return_code"))
        signal = whole_number(mapping(value.get("signal")).get("id", mapping(value.get("signal")).get("signal_id")))
    elif isinstance(value, str) and re.fullmatch(r"\d{1,3}:\d{1,3}", value):
        code, signal = (int(part) for part in value.split(":"))
    elif isinstance(value, int):
        code, signal = value >> 8, value & 0x7F
    if signal:
        # The code of a process that a signal ended is not set, or is left over.
        return {"exit_code": 0} | ({"signal": signal} if signal <= _HIGHEST_SIGNAL else {})
    return {"exit_code": code} if code is not None else {}


def _accounted_exit(value: object, state: str) -> Record:
    """Return the exit status from sacct.

    sacct's text subtracts 128 from codes of at least 128 (before 25.11), so a code below 128 stands for two codes. 0 is certain
    only for COMPLETED.
    """
    exit_status = _exit(value)
    code, is_success = exit_status.get("exit_code"), state == "COMPLETED"
    if code is None or is_success or exit_status.get("signal") or (code and not isinstance(value, str)):
        return exit_status
    return {"exit_codes": [code, code + 128]} if 0 < code < 128 else {}


def _tres(job: Record) -> str:
    """Format sacct's list of allocated resources like squeue's text."""
    allocated = mapping(job.get("tres")).get("allocated")
    parts = [mapping(resource) for resource in allocated] if isinstance(allocated, list) else []
    names = (f"{part.get('type')}{'/' + str(part['name']) if part.get('name') else ''}={part.get('count')}" for part in parts)
    return ",".join(names)
