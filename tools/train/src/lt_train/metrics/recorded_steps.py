"""Read the steps of a run from its metrics.jsonl, each with the configuration that computed it.

Every attempt appends its configuration and then its steps. If a step was trained again after a resume, the later record counts,
with the configuration of that attempt.
"""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from lt_shared.console import BadData, NoInput
from lt_shared.files import storage
from lt_train.config.run_config import RunConfig
from lt_train.process import run_files

METRICS = "metrics.jsonl"
# The kinds of records as lt-monitor names them. A start record has `first_step` and Megatron's `arguments` for lt-monitor.
START, STEP = "start", "step"


@dataclasses.dataclass(frozen=True)
class Attempt:
    """An attempt of the run: it trained after step `start` with `config` and these `versions` of packages.

    `other_layers`: it used TransformerEngine's layers, which lt-train no longer has.
    """

    start: int
    config: RunConfig
    versions: dict[str, str]
    other_layers: bool = False


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """The line about a step. `attempt` is None if the version of lt-train that wrote the line stored no configuration.

    `loss` is the mean since the line before. A number is None if it is missing or not finite.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    attempt: Attempt | None


def start_record(attempt: Attempt, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": START,
        "first_step": attempt.start + 1,
        "arguments": _parse_finite(json.dumps(arguments, default=str)),
        "config": _parse_finite(attempt.config.to_json()),
        "versions": attempt.versions,
    }


def _parse_finite(text: str) -> Any:
    """Parse `text`. NaN and infinities, which JSON does not have, become their names; settings are read from the names, too."""
    return json.loads(text, parse_constant=str)


def read(run: str) -> dict[int, RecordedStep]:
    """Read the recorded steps of a run by their number. `run` is a directory or a URL. Raises NoInput, BadData."""
    path = f"{run.rstrip('/')}/{METRICS}"
    if not storage.exists(path):
        raise NoInput(f"{path}: no such file", "name the directory of a run of lt-train: its --save")
    return parse(storage.read_bytes(path).decode(errors="replace").splitlines(), path)


def parse(lines: Iterable[str], path: str) -> dict[int, RecordedStep]:
    """Parse the recorded steps in `lines` of the file `path`. A line that a killed attempt has left unfinished is skipped."""
    recorded: dict[int, RecordedStep] = {}
    attempt = None
    for line in lines:
        record = run_files.parse_record(line)
        kind = record.get("kind")
        if not record and f'"kind":"{START}"' in line:
            # Older versions wrote the next attempt's configuration behind the unfinished line, so the steps have none.
            attempt = None
        elif kind == START and "config" in record:
            attempt = _attempt(record, path)
        elif kind == STEP and type(record.get("step")) is int:
            step = record["step"]
            recorded[step] = RecordedStep(step, record.get("loss"), record.get("grad_norm"), attempt)
    return recorded


def _attempt(record: dict[str, Any], path: str) -> Attempt:
    try:
        config = record["config"]
        is_other = config["layers"].get("implementation") == "te"
        return Attempt(int(record["first_step"]) - 1, RunConfig.from_json(json.dumps(config)), dict(record["versions"]), is_other)
    except Exception as error:
        # cattrs raises exception groups, which contain whatever the settings classes raise.
        raise BadData(f"{path}: the configuration of an attempt is not as this version writes it: {error}") from None
