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
# As lt-monitor names them: `first_step` and `arguments`, which are Megatron's, are for it.
START, STEP = "start", "step"


@dataclasses.dataclass(frozen=True)
class Attempt:
    """From `start` steps on, the run was trained with `config` by these `versions` of packages.

    `other_layers`: by TransformerEngine's layers, which lt-train no longer has.
    """

    start: int
    config: RunConfig
    versions: dict[str, str]
    other_layers: bool = False


@dataclasses.dataclass(frozen=True)
class RecordedStep:
    """The line about a step. `attempt` is None where a version of lt-train wrote it that kept no configuration.

    `loss` is the mean since the line before; both numbers are None where the line has none, or one that is not finite.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    attempt: Attempt | None


def start_record(attempt: Attempt, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": START,
        "first_step": attempt.start + 1,
        "arguments": _plain(json.dumps(arguments, default=str)),
        "config": _plain(attempt.config.to_json()),
        "versions": attempt.versions,
    }


def _plain(text: str) -> Any:
    """Without numbers that JSON does not have; a configuration is read back from their names, too."""
    return json.loads(text, parse_constant=str)


def read(run: str) -> dict[int, RecordedStep]:
    """The recorded steps of a run, a directory or a URL, by their number. Raises NoInput, BadData."""
    path = f"{run.rstrip('/')}/{METRICS}"
    if not storage.exists(path):
        raise NoInput(f"{path}: no such file", "name the directory of a run of lt-train: its --save")
    return parse(storage.read_bytes(path).decode(errors="replace").splitlines(), path)


def parse(lines: Iterable[str], path: str) -> dict[int, RecordedStep]:
    """The same of lines; one that a killed attempt has left unfinished is passed over.

    Older versions wrote the configuration of the next attempt behind that, on the same line: its steps are nobody's then.
    """
    found: dict[int, RecordedStep] = {}
    attempt = None
    for line in lines:
        record = run_files.parse_record(line)
        kind = record.get("kind")
        if not record and f'"kind":"{START}"' in line:
            attempt = None
        elif kind == START and "config" in record:
            attempt = _attempt(record, path)
        elif kind == STEP and type(record.get("step")) is int:
            step = record["step"]
            found[step] = RecordedStep(step, record.get("loss"), record.get("grad_norm"), attempt)
    return found


def _attempt(record: dict[str, Any], path: str) -> Attempt:
    try:
        config = record["config"]
        is_other = config["layers"].get("implementation") == "te"
        return Attempt(int(record["first_step"]) - 1, RunConfig.from_json(json.dumps(config)), dict(record["versions"]), is_other)
    except Exception as error:
        # cattrs raises groups of whatever the classes raise.
        raise BadData(f"{path}: the configuration of an attempt is not as this version writes it: {error}") from None
