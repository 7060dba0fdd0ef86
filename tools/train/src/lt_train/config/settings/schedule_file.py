"""Read the file of --data-schedule, YAML or JSON, which describes the phases of a run.

phases:
  - name: pretraining
    tokens: 12_000_000_000
    weights: {web: 0.8, code: 0.2}
  - name: long context
    samples: 10000
    weights: {code: 0.5, books: 0.5}
    seq-length: 32768
    rotary-base: 5000000
    global-batch-size: 64
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lt_shared.console import BadConfig, UsageError
from lt_shared.contracts.manifest import Dataset
from lt_shared.files import storage, strict_yaml
from lt_shared.models.architecture import Architecture
from lt_train.config.settings import streaming
from lt_train.config.settings.batches import LENGTHS, sequence_length
from lt_train.config.settings.data_schedule import OPTION, Phase, Schedule
from lt_train.config.settings.model.architecture import parse_rope_scaling

FIELDS = ("name", "tokens", "samples", "weights", "seq_length", "global_batch_size", "rotary_base", "rope_scaling")
LONGEST_NAME = 60


def resolve_schedule(options: dict[str, Any], datasets: tuple[Dataset, ...], architecture: Architecture) -> Schedule:
    """Read the phases from the file of --data-schedule.

    Raises UsageError if another option sets the run's length, BadConfig for an invalid file, and as `storage.read_bytes`.
    """
    path = options["data_schedule"]
    if path is None:
        return Schedule()
    lengths = [f"--{name.replace('_', '-')}" for name in LENGTHS if options[name]]
    if lengths:
        raise UsageError(f"{OPTION} and {lengths[0]}", "the phases are the length of the run: drop the other")
    if not datasets:
        raise UsageError(f"{OPTION} without datasets", "name the datasets that the phases draw from")
    try:
        phases = _phases(strict_yaml.loads(storage.read_bytes(path).decode()))
        names = streaming.names(datasets)
        index_by_name = dict(zip([*names, *(dataset.prefix for dataset in datasets)], [*range(len(names))] * 2, strict=True))
        weights = [dataset.weight for dataset in datasets]
        size = sequence_length(options, architecture)
        resolved = tuple(_phase(phase, index_by_name, weights, size, architecture) for phase in phases)
        _check_names([phase.name for phase in resolved])
        return Schedule(resolved)
    except (ValueError, RecursionError) as error:
        raise BadConfig(f"{path}: {error}", "phases: [{name: main, tokens: 1000000, weights: {NAME: 1.0}}]") from None


def _phases(content: Any) -> list[dict[str, Any]]:
    if not isinstance(content, dict) or set(content) != {"phases"}:
        raise ValueError("it is not a mapping of `phases` alone")
    phases = content["phases"]
    if not isinstance(phases, list) or not phases or not all(isinstance(phase, dict) for phase in phases):
        raise ValueError("phases is not a list of mappings")
    return [{str(key).replace("-", "_"): value for key, value in phase.items()} for phase in phases]


def _phase(
    fields: dict[str, Any],
    index_by_name: Mapping[str, int],
    weights: Sequence[float],
    seq_length: int,
    architecture: Architecture,
) -> Phase:
    name = fields.get("name")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(f"a phase is called {name!r:.80}, and needs a name of at most {LONGEST_NAME} characters")
    for field in fields:
        if field not in FIELDS:
            raise ValueError(f"phase {name}: no setting {field!r:.40}; there are {', '.join(FIELDS)}")
    size = _whole(fields, "seq_length", name) or seq_length
    tokens, samples = _whole(fields, "tokens", name), _whole(fields, "samples", name)
    if (tokens is None) == (samples is None):
        raise ValueError(f"phase {name}: give its length, either tokens or samples")
    return Phase(
        name=name,
        samples=samples or (tokens or 0) // size,
        weights=_weights(fields["weights"], index_by_name, len(weights), name) if "weights" in fields else tuple(weights),
        seq_length=size,
        architecture=_architecture(fields, architecture, name),
        global_batch_size=_whole(fields, "global_batch_size", name),
    )


def _whole(fields: dict[str, Any], field: str, name: str) -> int | None:
    value = fields.get(field)
    if value is None:
        return None
    try:
        number = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError):
        number = 0.0
    if number < 1 or number != int(number):
        raise ValueError(f"phase {name}: {field} is {value!r:.40}, expected a whole number from 1 on")
    return int(number)


def _weights(weight_by_name: Any, index_by_name: Mapping[str, int], count: int, name: str) -> tuple[float, ...]:
    if not isinstance(weight_by_name, dict) or not weight_by_name:
        raise ValueError(f"phase {name}: weights is {weight_by_name!r:.40}, expected a mapping of datasets to numbers")
    weights = [0.0] * count
    for dataset, weight in weight_by_name.items():
        if dataset not in index_by_name:
            raise ValueError(f"phase {name}: no dataset {dataset!r:.80}; there are {', '.join(list(index_by_name)[:count])}")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
            raise ValueError(f"phase {name}: the weight of {dataset} is {weight!r:.40}, expected a number from 0 on")
        weights[index_by_name[dataset]] = float(weight)
    if not any(weights):
        raise ValueError(f"phase {name}: all weights are 0")
    return tuple(weights)


def _architecture(fields: dict[str, Any], architecture: Architecture, name: str) -> Architecture:
    changes: dict[str, Any] = {}
    if base := _whole(fields, "rotary_base", name):
        changes["rotary_base"] = float(base)
    if scaling := fields.get("rope_scaling"):
        changes["rope_scaling"] = parse_rope_scaling(scaling if isinstance(scaling, str) else json.dumps(scaling), architecture)
    return dataclasses.replace(architecture, **changes) if changes else architecture


def _check_names(names: list[str]) -> None:
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ValueError(f"two phases are called {name}")
