"""Extract log lines from JSON objects: docker's json-file, journald, fluent-bit, stern and logcli as JSON, clouds, loggers.

Loggers (python-json-logger, structlog, loguru, bunyan) store an exception under a separate key; its lines are appended to the
text. One object holds one line, or several lines that a program wrote together. docker cuts a line longer than 16 KiB into
several objects, and only the last one's text has a newline; they are joined to one line again.
"""

import datetime
import math
from typing import Any

import orjson

from lt_monitor.events.records import Record
from lt_shared.lazy_patterns import regex

DOCKER_PART_BYTES = 1 << 14

# The key of the text, and companion keys. One companion is required, because trainers and lt tools print JSON lines, too.
_TEXTS: tuple[tuple[str, frozenset[str]], ...] = (
    ("log", frozenset({"stream", "time", "date", "timestamp", "@timestamp", "kubernetes"})),
    ("MESSAGE", frozenset({"_HOSTNAME", "__REALTIME_TIMESTAMP", "_PID", "PRIORITY", "_SYSTEMD_UNIT"})),
    ("message", frozenset({"podName", "nodeName", "kubernetes", "container_name", "@timestamp", "stream", "timestamp"})),
    # Loggers of Python, Go and JavaScript; Datadog.
    ("message", frozenset({"asctime", "levelname", "level", "severity", "logger", "ddsource", "status"})),
    ("msg", frozenset({"level", "ts", "time"})),
    ("event", frozenset({"level", "log_level", "logger"})),
    ("text", frozenset({"record"})),
    # Azure's container logs, old and new.
    ("LogEntry", frozenset({"TimeGenerated", "ContainerID", "ContainerName"})),
    ("LogMessage", frozenset({"TimeGenerated", "ContainerId", "PodName"})),
    ("line", frozenset({"labels", "timestamp"})),
    ("textPayload", frozenset({"timestamp", "resource", "insertId"})),
)
# Cloud Logging wraps the JSON that a program prints under this key.
_INNER = "jsonPayload"
_NO_ENVELOPE = frozenset({"kind", "loss", "tracker"})
_EXCEPTIONS = ("exc_info", "exception", "stack_trace", "stacktrace", "traceback", "error.stack_trace", "stack")
_ANY_EXCEPTION = frozenset(_EXCEPTIONS)
_TIMES = ("time", "timestamp", "@timestamp", "asctime", "ts", "date", "__REALTIME_TIMESTAMP", "TimeGenerated")
_NODES = ("_HOSTNAME", "nodeName", "podName", "host", "hostname", "PodName", "Computer")
_NODES_OF_KUBERNETES = ("host", "pod_name")
# logfmt of logrus and slog, the standard output of fluent-bit, and files of fluentd.
_QUOTED = regex(
    rb"(?:time|ts)=(?P<logfmt_time>\"[^\"\n]{1,60}\"|\S{1,60}) (?:\w{1,20}=[^\s\"]{1,100} ){0,4}level=\w{1,10}"
    # A choice for each character would take ten times as long.
    rb" (?:\w{1,20}=[^\s\"]{1,100} ){0,4}msg=(?P<quoted>\"[^\"\\\n]*(?:\\[^\n][^\"\\\n]*)*\")"
    rb"|\[\d{1,9}\] \S{1,200}: \[\[?(?P<seconds>\d{9,10}\.\d{1,9})(?:, \{[^\n]{0,200}?\}\])?, "
    rb"\{[^\n]{0,2000}?\"log\"=>\"(?P<printed>[^\n]*?)(?:\\n)?\"(?:, \"\w{1,40}\"=>[^\n]*)?\}\]$"
    rb"|(?P<fluentd_time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})? ?(?:[+-]\d\d:?\d\d|Z))[ \t][\w.*/-]{1,300}"
    rb"(?:: |\t)(?P<record>\{\"[^\n]*\})$"
)
_QUOTED_BEGINS = (b"t", b"[", *(bytes((digit,)) for digit in b"0123456789"))


def text_key(envelope: Any) -> str | None:
    """Return the key of the log line in an object; None for any other JSON."""
    if not isinstance(envelope, dict) or not _NO_ENVELOPE.isdisjoint(envelope):
        return None
    for key, companions in _TEXTS:
        if key in envelope and not companions.isdisjoint(envelope):
            return key
    return _INNER if _inner_text(envelope) is not None else None


def _inner_text(envelope: Record) -> str | None:
    inner = envelope.get(_INNER)
    text = inner.get("message") if isinstance(inner, dict) else None
    return text if isinstance(text, str) else None


def quoted_text(line: bytes) -> bytes | None:
    """Return the text that a shipper quotes in its line; None for any other line."""
    match = _QUOTED.match(line) if line[:1] in _QUOTED_BEGINS else None
    if match is None:
        return None
    if (record := match["record"]) is not None:
        return text(parse(record))
    if match["printed"] is not None:
        return bytes(match["printed"])
    value = parse(match["quoted"])
    return value.encode(errors="replace") if isinstance(value, str) else None


def read_quoted(line: bytes) -> Record:
    """Return the `time` and `node` of a line with a quoted text."""
    match = _QUOTED.match(line)
    if match is None:
        return {}
    labels = read(envelope) if match["record"] is not None and isinstance(envelope := parse(match["record"]), dict) else {}
    stamp = match["logfmt_time"] or match["fluentd_time"]
    time = _time(stamp.decode().strip('"')) if stamp is not None else None
    time = time_of(float(match["seconds"])) if match["seconds"] is not None else time
    return labels if time is None else {"time": time, **labels}


def parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def is_envelope(line: bytes) -> bool:
    return line.startswith(b"{") and text_key(parse(line)) is not None


def parse_all(lines: list[bytes]) -> list[Any]:
    """Parse every line as JSON; None for a line that is not JSON."""
    try:
        values = orjson.loads(b"[" + b",".join(lines) + b"]")
    except orjson.JSONDecodeError:
        return [parse(line) if line.startswith(b"{") else None for line in lines]
    return list(values) if len(values) == len(lines) else [parse(line) for line in lines]


def text(envelope: Any) -> bytes | None:
    """Return the text of an envelope, or None for other JSON. journald stores texts with control characters as lists of bytes."""
    key = text_key(envelope)
    value = _inner_text(envelope) if key == _INNER else envelope[key] if key is not None else None
    if isinstance(value, list):
        try:
            return bytes(value)
        except (TypeError, ValueError):
            return None
    if not isinstance(value, str):
        return None
    exception = _exception(envelope) if _has_exception(envelope) else None
    return (value if exception is None else f"{value.rstrip()}\n{exception}").encode(errors="replace")


def _exception(envelope: Record) -> str | None:
    """Return the lines of an exception under a separate key: a traceback, or structlog's list of exceptions."""
    for key in _EXCEPTIONS:
        value = envelope.get(key)
        if isinstance(value, str) and "Traceback (most recent call last)" in value:
            return value
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(first, dict) and isinstance(first.get("exc_type"), str):
            return f"{first['exc_type']}: {first.get('exc_value', '')}"
    return None


def whole_lines(values: list[Any]) -> bytes | None:
    """Join the texts of envelopes quickly if they have one kind and hold a line each; otherwise return None."""
    key = text_key(values[0]) if values else None
    try:
        if key == _INNER or any(map(_has_exception, values)):
            return None
        texts = [value[key] for value in values]
        joined = "".join(texts)
    except (KeyError, TypeError):
        return None
    count = joined.count("\n")
    if "\r" in joined or (count and (count != len(texts) or not all(text.endswith("\n") for text in texts))):
        return None
    if not count:
        if max(map(len, texts)) * 2 >= DOCKER_PART_BYTES:
            return None
        joined = "\n".join(texts) + "\n"
    return joined.encode(errors="replace")


def _has_exception(envelope: Record) -> bool:
    return not _ANY_EXCEPTION.isdisjoint(envelope)


def is_part(envelope: Record, line: bytes) -> bool:
    """Whether the text `line` of an envelope continues in the next envelope."""
    if "partial_message" in envelope:
        return str(envelope["partial_message"]).lower() == "true" and str(envelope.get("partial_last")).lower() != "true"
    return len(line) >= DOCKER_PART_BYTES and not line.endswith(b"\n") and "log" in envelope


def read(envelope: Record) -> Record:
    """Return the `time` and `node` of an envelope."""
    labels: Record = {}
    if (time := next((time for key in _TIMES if (time := _time(envelope.get(key))) is not None), None)) is not None:
        labels["time"] = time
    kubernetes = envelope.get("kubernetes")
    nodes = [envelope.get(key) for key in _NODES]
    if isinstance(kubernetes, dict):
        nodes += [kubernetes.get(key) for key in _NODES_OF_KUBERNETES]
    if (node := next((node for node in nodes if isinstance(node, str) and node), None)) is not None:
        labels["node"] = node
    return labels


def _time(value: Any) -> str | None:
    """Return a time as ISO 8601. A number may be seconds, milli-, micro- or nanoseconds since 1970."""
    if value is None:
        # Most of the keys are missing, and an exception takes ten times as long.
        return None
    if isinstance(value, str) and not value.isdigit():
        return value.replace(" ", "T", 1) if value[:4].isdigit() and value[4:5] == "-" else None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return None
    return time_of(seconds)


def time_of(seconds: float) -> str | None:
    """Convert seconds, milli-, micro- or nanoseconds since 1970 to ISO 8601; None for an impossible number."""
    while seconds > 1e11:
        seconds /= 1000
    if not math.isfinite(seconds) or seconds <= 0:
        return None
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")
