"""Translate configurations in Python: Megatron-Bridge's recipes, TorchTitan's registry and NeMo 2's recipes."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import BadData
from lt_train.importers import megatron_bridge, nemo_recipe, torchtitan, torchtitan_registry
from lt_train.importers.bridge import recipe
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Dropped, Translation, flatten
from lt_train.importers.python.configuration import Configuration, target_name
from lt_train.importers.python.values import Unknown
from lt_train.importers.upstream import bridge_fields, torchtitan_keys
from lt_train.importers.upstream.rows import Row

SPEED = frozenset({"model.moe_token_dispatcher_type", "model.moe_shared_expert_overlap", "model.moe_flex_dispatcher_backend"})
OTHER_CONFIGURATIONS = "Megatron-Bridge's ConfigContainer, TorchTitan's Trainer.Config and NeMo's run.Partial are read"


def split_path(path: str) -> tuple[str, str]:
    """Split "recipe.py:function" into the file and the name in it."""
    file, colon, name = path.rpartition(":")
    return (file, name) if colon and file.endswith(".py") and name.isidentifier() else (path, "")


def translate(file: str, name: str, overrides: Mapping[str, Any]) -> Translation:
    """Translate the configuration that `name` of the Python file `file` makes. Raises BadData."""
    configuration = Configuration(Path(file), name, overrides)
    kind = target_name(configuration.value)
    if kind.startswith("megatron.bridge.") and kind.endswith("ConfigContainer"):
        return _translate(recipe.values_of(configuration, megatron_bridge.CARRIED), megatron_bridge.translate, bridge_fields.row)
    if kind.startswith("nemo.") and configuration.value.is_deferred:
        values = nemo_recipe.values_of(configuration, megatron_bridge.CARRIED)
        return _translate(values, functools.partial(megatron_bridge.translate, source="NeMo"), bridge_fields.row)
    if kind.startswith("torchtitan.") and "Config" in kind:
        return _translate(torchtitan_registry.values_of(configuration), torchtitan.translate, torchtitan_keys.ROWS.get)
    raise BadData(f"{kind} is no configuration that lt-train knows", OTHER_CONFIGURATIONS)


def _translate(
    values: Mapping[str, Any], translate_values: Callable[[dict[str, Any]], Translation], row: Callable[[str], Row | None]
) -> Translation:
    """Translate the known values, and report the unknown ones. Those that decide the run are refused."""
    flat = flatten(values)
    unknown = {key: value for key, value in flat.items() if _unknown_in(value)}
    translation = translate_values({key: value for key, value in flat.items() if key not in unknown})
    deciding: dict[str, str] = {}
    dropped: list[Dropped] = []
    for key, value in unknown.items():
        cause = _unknown_in(value)
        table_row = row(key) or row(f"{key}.")
        if key in SPEED or (table_row and table_row.effect in (Effect.NONE, Effect.SPEED)):
            effect = table_row.effect if table_row else Effect.SPEED
            dropped.append(Dropped(key, "unknown", f"only a run of it would show the value ({cause})", effect))
        else:
            deciding[key] = str(cause)
    return translation.with_unknown(deciding, dropped)


def _unknown_in(value: Any) -> Unknown | None:
    """Return the first unknown in a value or in the entries of a list."""
    if isinstance(value, list):
        return next((cause for entry in value for cause in [_unknown_in(entry)] if cause), None)
    if isinstance(value, dict):
        return _unknown_in(list(value.values()))
    return value if isinstance(value, Unknown) else None
