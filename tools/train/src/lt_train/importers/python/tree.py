"""Turn an interpreted object into nested tables of plain values, as Megatron-Bridge's run_config.yaml writes its objects."""

import math
from collections.abc import Callable
from typing import Any

from lt_train.importers.python.values import (
    MISSING,
    Builtin,
    Class,
    EnumMember,
    External,
    Field,
    Function,
    Instance,
    LazyImport,
    Method,
    Partial,
    Unknown,
)

DEEPEST = 24


class Tree:
    """Convert values. `fields_of` returns the dataclass fields of a class, and `resolve` the value of an import."""

    def __init__(self, fields_of: Callable[[Any], dict[str, Field]], resolve: Callable[[LazyImport], Any]):
        self._fields_of, self._resolve = fields_of, resolve

    def convert(self, value: Any, depth: int = 0) -> Any:
        """Return plain values. Unknown values stay Unknown, at the places where they are."""
        if isinstance(value, LazyImport):
            value = self._resolve(value)
        if depth > DEEPEST:
            return Unknown("objects nested too deeply", "")
        if isinstance(value, Instance):
            return value.tainted or self._object(value, depth)
        if isinstance(value, External | Class | Function | Method | Builtin):
            return {"_target_": name_of(value), "_call_": False}
        if isinstance(value, EnumMember):
            return {"_target_": value.owner.qualified_name, "_call_": True, "_args_": [self.convert(value.value, depth + 1)]}
        if isinstance(value, Partial):
            keywords = {name: self.convert(entry, depth + 1) for name, entry in value.keywords.items()}
            arguments = [self.convert(entry, depth + 1) for entry in value.arguments]
            return {"_target_": name_of(value.function), "_partial_": True, "_args_": arguments, **keywords}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.convert(entry, depth + 1) for entry in value]
        if isinstance(value, dict):
            return {str(name): self.convert(entry, depth + 1) for name, entry in value.items()}
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)  # as in the tables of defaults, which are JSON
        return value

    def _object(self, instance: Instance, depth: int) -> dict[str, Any]:
        attributes: dict[str, Any] = {}
        if instance.is_deferred or isinstance(instance.target, External):
            defaults = (
                instance.target.defaults
                if isinstance(instance.target, Function)
                else {
                    name: field.default
                    for name, field in self._fields_of(instance.target).items()
                    if field.default is not MISSING
                }
            )
            attributes.update(defaults)
        attributes.update(instance.attributes)
        # Private fields hold state, but a switch that is on is a setting: TorchTitan's _debug_force_load_balance.
        table = {
            name: self.convert(entry, depth + 1)
            for name, entry in attributes.items()
            if entry is True or not name.startswith("_")
        }
        return {"_target_": name_of(instance.target), **table}

    def defaults(self, instance: Instance) -> dict[str, Any]:
        """Return the plain default of each field of an object."""
        fields = self._fields_of(instance.target)
        return {name: self.convert(field.default) for name, field in fields.items() if field.default is not MISSING}


def name_of(value: Any) -> str:
    """Return the dotted path of a class or function."""
    if isinstance(value, External):
        return value.name
    if isinstance(value, Method):
        return name_of(value.function)
    if isinstance(value, Class | Function):
        return value.qualified_name
    return value.name if isinstance(value, Builtin) else type(value).__name__
