"""The value that a parameter of a merge method has for one tensor, in mergekit's notation.

A setting is a number or a boolean; a list of numbers, which is a gradient over the layers; or a list of mappings with `value` and
`filter`, a part of the tensor's name in Hugging Face files. The first mapping whose filter fits decides. Settings of a model
precede settings of a slice, which precede settings of the merge.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lt_shared.console import UsageError
from lt_shared.files import strict_yaml

Settings = Mapping[str, Any]
FILTER, VALUE, EVERYTHING = "filter", "value", "*"


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Parse words NAME=VALUE, with VALUE in YAML. Raises UsageError for other words, and for a repeated name."""
    settings: dict[str, Any] = {}
    for word in words:
        name, separator, text = word.partition("=")
        try:
            value = strict_yaml.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"--parameter {word}: not YAML: {error}", "as density=0.5, or t=[0, 0.5, 1]") from None
        if not separator or not name or value is None:
            raise UsageError(f"--parameter {word}: not NAME=VALUE", "as density=0.5, or t=[0, 0.5, 1]")
        if name in settings:
            raise UsageError(f"--parameter {name}: is given twice", "give it once")
        settings[name] = value
    return settings


def resolve(name: str, default: Any, scopes: Sequence[Settings], tensor: str, depth: float) -> Any:
    """The value of the parameter `name`, from the first of `scopes` that has one for the tensor, or the default.

    `depth` is the layer's position in the model, from 0 to 1, and 0 for a tensor outside the layers. The value is a bool if the
    default is one, else a float. Raises UsageError for a value with another type, or without a value and a default.
    """
    for scope in scopes:
        if name in scope:
            value = _evaluated(name, scope[name], isinstance(default, bool), tensor, depth)
            if value is not None:
                return value
    if default is None:
        raise UsageError(f"the parameter {name} has no value for {tensor}", f"give one, as --parameter {name}=0.5")
    return default


def _evaluated(name: str, setting: Any, is_boolean: bool, tensor: str, depth: float) -> Any:
    if isinstance(setting, Mapping):
        setting = [setting]
    if not isinstance(setting, list):
        return _scalar(name, setting, is_boolean)
    if not setting:
        return None
    if not any(isinstance(entry, Mapping) for entry in setting):
        values = [_scalar(name, entry, is_boolean) for entry in setting]
        position = depth * (len(values) - 1)
        if is_boolean:
            return values[int(position)]
        index = int(position)
        share = position - index
        return (1 - share) * values[index] + share * values[min(len(values) - 1, index + 1)]
    for entry in setting:
        if not isinstance(entry, Mapping) or VALUE not in entry or not set(entry) <= {FILTER, VALUE}:
            raise UsageError(
                f"the parameter {name}: {entry!r} is not a value with an optional filter", "as {filter: mlp, value: 0.5}"
            )
        pattern = entry.get(FILTER)
        if pattern in (None, EVERYTHING) or str(pattern) in tensor:
            return _evaluated(name, entry[VALUE], is_boolean, tensor, depth)
    return None


def _scalar(name: str, value: Any, is_boolean: bool) -> bool | float:
    if is_boolean and value in (True, False, 0, 1):
        return bool(value)
    try:
        # YAML 1.1 reads 1e-3 as text.
        number = float(value) if not isinstance(value, bool) and not is_boolean else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"the parameter {name} is {value!r}", f"it is {'true or false' if is_boolean else 'a number'}")
    return number
