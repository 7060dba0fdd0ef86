"""Replace the Python objects in Megatron-Bridge's run_config.yaml by plain values."""

from collections.abc import Mapping
from typing import Any

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

# megatron/core/transformer/enums.py.
ENUMS = {
    "AttnBackend": {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"},
    "Signals": {10: "SIGUSR1", 15: "SIGTERM"},
}


# Functions that Megatron-Bridge sets itself in some runs alone, and calls in all.
FUNCTIONS = ("no_sync_func", "grad_sync_func", "param_sync_func", "moe_grad_scale_func", "mtp_grad_scale_func")
CODE = "it is code, which lt-train import does not run"


def drop_functions(ledger: Ledger) -> None:
    """Report functions of the model that are not megatron-core's own, which a run writes into its run_config.yaml."""
    for name in FUNCTIONS:
        value = ledger.peek(f"model.{name}")
        functions = value if isinstance(value, list) else [] if value is None else [value]
        if not all(str(function).startswith("megatron.core.") for function in functions):
            ledger.drop(f"model.{name}", CODE, Effect.RUN)


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
