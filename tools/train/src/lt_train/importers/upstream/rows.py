"""Tables of a trainer's options: the effect of dropping an option, and the reason."""

import dataclasses
import functools
import json
from importlib import resources
from typing import Any

from lt_train.importers.effects import Effect


@dataclasses.dataclass(frozen=True)
class Row:
    effect: Effect
    reason: str


def rows(*groups: tuple[Effect, str, str]) -> dict[str, Row]:
    """Map each name in `groups`, which are (effect, reason, names separated by spaces), to its row.

    Raises ValueError for a name that stands in two groups.
    """
    table: dict[str, Row] = {}
    for effect, reason, names in groups:
        for name in names.split():
            if name in table:
                raise ValueError(f"{name}: two rows")
            table[name] = Row(effect, reason)
    return table


@functools.cache
def options(trainer: str) -> dict[str, Any]:
    """Read the options of `trainer` with their defaults. Megatron-LM's entries have a kind, a default and optional choices."""
    text = resources.files(__package__).joinpath(f"{trainer}.json").read_text()
    table: dict[str, Any] = json.loads(text)["options"]
    return table


def is_default(value: Any, default: Any) -> bool:
    """Whether `value`, as a file or a command line writes it, is `default`. A switch that is off is like one that is not set."""
    if value == default and isinstance(value, bool) == isinstance(default, bool):
        return True
    if value in (None, False, "", [], {}) and default in (None, False, "", [], {}):
        return True
    if isinstance(value, str) and isinstance(default, int | float) and not isinstance(default, bool):
        try:
            return float(value) == default
        except ValueError:
            return False
    return isinstance(value, str) and isinstance(default, str) and _last_name(value) == _last_name(default)


def _last_name(text: str) -> str:
    """Return the last part of a dotted name: "bfloat16" for torch.bfloat16, or the member name of an enum."""
    return text.rpartition(".")[2].lower()
