"""The account of a foreign configuration: every key of it is carried over once, or dropped with a reason.

A key that a translation forgets is listed as unknown, so nothing of a configuration is lost silently.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclasses.dataclass(frozen=True)
class Dropped:
    key: str
    value: Any
    reason: str


@dataclasses.dataclass(frozen=True)
class Translation:
    """`options` by the names of lt-train's parameters. Those in `defaults` are not in the configuration but follow from it."""

    source: str
    options: dict[str, Any]
    defaults: frozenset[str]
    dropped: tuple[Dropped, ...]

    def toml(self) -> str:
        """What --config reads."""
        lines = [f"# from {self.source}"]
        for name, value in self.options.items():
            default = f"  # a default of {self.source}" if name in self.defaults else ""
            lines.append(f"{name.replace('_', '-')} = {_literal(value)}{default}")
        return "\n".join(lines) + "\n"

    def record(self) -> dict[str, Any]:
        """The JSON object of `lt-train import --json`."""
        return {
            "v": 1,
            "kind": "import",
            "source": self.source,
            "options": {name.replace("_", "-"): value for name, value in self.options.items()},
            "defaults": sorted(name.replace("_", "-") for name in self.defaults),
            "not_carried": [dataclasses.asdict(entry) for entry in self.dropped],
        }


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


class Ledger:
    """Keys with dots, each to be taken once."""

    def __init__(self, source: str, values: Mapping[str, Any]):
        self.source = source
        self._left = dict(values)
        self._options: dict[str, Any] = {}
        self._defaults: set[str] = set()
        self._dropped: list[Dropped] = []

    def has(self, key: str) -> bool:
        return key in self._left

    def take(self, key: str, otherwise: Any = None) -> Any:
        """The value, which the caller accounts for."""
        return number(self._left.pop(key, otherwise))

    def carry(self, key: str, option: str, convert: Callable[[Any], Any] = lambda value: value) -> None:
        """Carry `key` over as `option`; one that is not set is passed over."""
        value = self.take(key)
        if value is not None:
            self.set(option, convert(value))

    def flag(self, key: str, option: str) -> None:
        """Carry a switch over that is on."""
        if self.take(key):
            self.set(option, True)

    def set(self, option: str, value: Any) -> None:
        self._options[option] = value

    def default(self, option: str, value: Any) -> None:
        """What the other trainer does where nothing is said, and lt-train does otherwise."""
        if option not in self._options:
            self._options[option] = value
            self._defaults.add(option)

    def get(self, option: str) -> Any:
        return self._options.get(option)

    def drop(self, key: str, reason: str) -> None:
        if key in self._left:
            self._drop(key, self._left.pop(key), reason)

    def drop_value(self, key: str, value: Any, reason: str) -> None:
        """Drop a key that was taken before."""
        self._drop(key, value, reason)

    def drop_all(self, reasons: Mapping[str, str]) -> None:
        """Drop keys, and with a name that ends in a dot all keys below it, each group for its reason."""
        for name, reason in reasons.items():
            for key in [key for key in self._left if key == name or (name.endswith(".") and key.startswith(name))]:
                self.drop(key, reason)

    def close(self, unknown: str) -> Translation:
        for key in list(self._left):
            self.drop(key, unknown)
        return Translation(self.source, self._options, frozenset(self._defaults), tuple(self._dropped))

    def _drop(self, key: str, value: Any, reason: str) -> None:
        # What is not set has no meaning to lose.
        if value is not None:
            self._dropped.append(Dropped(key, " ".join(map(str, value)) if isinstance(value, list) else value, reason))


def number(value: Any) -> Any:
    """YAML reads 1e-5, without a point, as text."""
    return float(value) if isinstance(value, str) and "e" in value.lower() and NUMBER.fullmatch(value) else value


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as keys with dots."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
