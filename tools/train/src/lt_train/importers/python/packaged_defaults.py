"""Fields and defaults of dataclasses of megatron-core, Megatron-Bridge, NeMo and TorchTitan, at pinned versions.

tests/train/upstream_dataclasses.py writes the table. It serves for classes that the repository of a configuration lacks.
"""

import functools
import json
from importlib import resources
from typing import Any

from lt_train.importers.python.values import External, Field, Unknown

# Bases without fields.
EMPTY = frozenset(
    f"{module}.{name}"
    for module, names in {
        "builtins": "object Exception ValueError str int float dict list tuple",
        "abc": "ABC",
        "enum": "Enum IntEnum StrEnum Flag",
        "typing": "Generic Protocol NamedTuple",
        "torch.nn": "Module",
        "lightning.pytorch.callbacks": "Callback",
    }.items()
    for name in names.split()
)


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("packaged_defaults.json").read_text()
    classes: dict[str, dict[str, Any]] = json.loads(text)["classes"]
    return classes


def key_of(name: str) -> str:
    """Return the row of a class: its package and its name. Packages re-export their classes, so the modules between vary."""
    parts = name.split(".")
    package = ".".join(parts[:2]) if parts[0] == "megatron" else parts[0]
    last = ".".join(parts[-2:]) if parts[-1] == "Config" else parts[-1]
    return f"{package}:{last}"


def has(name: str) -> bool:
    """Whether the table has the class `name` and all of its bases."""
    row = _table().get(key_of(name))
    return row is not None and all(base in _table() for base in _all_bases(key_of(name)))


@functools.cache
def of(name: str) -> dict[str, Field]:
    """Map the fields of the class `name`, and of its bases, to their defaults."""
    fields: dict[str, Field] = {}
    for key in (*reversed(_all_bases(key_of(name))), key_of(name)):
        fields.update({field: _field(stored) for field, stored in _table().get(key, {"fields": {}})["fields"].items()})
    return fields


def methods_of(name: str) -> set[str]:
    """Return the names of the methods and properties of the class `name` and of its bases."""
    keys = (key_of(name), *_all_bases(key_of(name)))
    return {method for key in keys for method in _table().get(key, {}).get("methods", ())}


def _all_bases(key: str) -> list[str]:
    """List the bases of a row, the nearest first."""
    bases: list[str] = []
    queue = list(_table().get(key, {"bases": []})["bases"])
    while queue:
        base = queue.pop(0)
        if base not in bases and base != key:
            bases.append(base)
            queue.extend(_table().get(base, {"bases": []})["bases"])
    return bases


def _field(stored: Any) -> Field:
    kind = next(iter(stored)) if isinstance(stored, dict) and len(stored) == 1 else ""
    if kind == "external":
        return Field(External(stored[kind]))
    if kind == "required":
        return Field()
    if kind == "factory":
        return Field(factory=External(stored[kind]))
    if kind == "unknown":
        return Field(Unknown(stored[kind], "a default"))
    return Field(stored)
