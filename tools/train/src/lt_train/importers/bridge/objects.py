"""Replace the Python objects in Megatron-Bridge's run_config.yaml by plain values."""

from collections.abc import Mapping
from typing import Any

# megatron/core/transformer/enums.py.
ENUMS = {
    "AttnBackend": {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"},
    "Signals": {10: "SIGUSR1", 15: "SIGTERM"},
}


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the keys that describe a function, a type or an enum member by one key with its name."""
    replaced = dict(values)
    for key in values:
        prefix, _, name = key.rpartition(".")
        if name != "_target_" or not prefix:
            continue
        kind = str(values[key]).rpartition(".")[2]
        arguments = values.get(f"{prefix}._args_")
        if values.get(f"{prefix}._call_") is False:
            _replace(replaced, prefix, str(values[key]))
        elif kind in ENUMS and isinstance(arguments, list) and len(arguments) == 1:
            _replace(replaced, prefix, ENUMS[kind].get(arguments[0], str(arguments[0])))
    return replaced


def _replace(values: dict[str, Any], prefix: str, value: Any) -> None:
    below = [key for key in values if key.startswith(f"{prefix}.")]
    if all(key.rpartition(".")[2] in ("_target_", "_call_", "_args_", "_name_", "_partial_") for key in below):
        for key in below:
            del values[key]
        values[prefix] = value
