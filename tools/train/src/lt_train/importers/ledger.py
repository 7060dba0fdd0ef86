"""Account for each key of another trainer's configuration: it is carried over once, or dropped with a reason.

`Ledger.close` lists the keys that a translation forgot as unknown, so no key is lost silently.
"""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from lt_shared import console
from lt_shared.console import BadData
from lt_shared.credentials import covered
from lt_train.config import credentials
from lt_train.config.options import schema
from lt_train.importers.effects import Effect, effect_of
from lt_train.importers.upstream.rows import Row, is_default

MOST_KEYS = 10_000
# The trainer stores steps, sizes and seeds in 64-bit integers.
LARGEST = 2**63 - 1
HOLDS_SECRET = "it holds a secret: those come from the environment"
NOT_SET = "it is not set"
IS_OFF = "it is off or empty, and lt-train does nothing of the kind unasked"
NOT_CARRIED = "lt-train does not do so beside the other keys"
IS_IMPLIED = "lt-train does so in any case, or it has no effect beside the other keys"
A_NUMBER, A_TEXT = "a number is needed there", "a text is needed there"
NAMING = ("model.flavor", "run.name", "name", "model.name", "exp_manager.name")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclasses.dataclass(frozen=True)
class Dropped:
    key: str
    value: Any
    reason: str
    effect: Effect
    # Neither the trainer's options nor a table of its keys has the key.
    is_unknown: bool = False

    def record(self) -> dict[str, Any]:
        """Return the entry as `lt-train import --json` prints it."""
        return {"key": self.key, "value": self.value, "reason": self.reason, "effect": self.effect.name.lower()}


@dataclasses.dataclass(frozen=True)
class Translation:
    """A translated configuration. `options` maps names of lt-train's parameters to values.

    `defaults` names the options that follow from the other trainer's defaults instead of a key. `names` are the names that the
    configuration gives to itself and its model. `unknown_variables` are the variables of a script that an option needs and
    whose values only a run of the script would show. `unknown_values` maps the keys of a configuration in Python that decide the
    run to the line that would have to be executed.
    """

    source: str
    options: dict[str, Any]
    defaults: frozenset[str]
    dropped: tuple[Dropped, ...]
    names: tuple[str, ...] = ()
    unknown_variables: tuple[str, ...] = ()
    unknown_values: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def with_unknown(self, values: Mapping[str, str], dropped: Sequence[Dropped]) -> "Translation":
        """Return a copy with values that were not read: those that decide the run, and `dropped` ones."""
        return dataclasses.replace(self, unknown_values=dict(values), dropped=(*self.dropped, *dropped))

    def without(self, names: Collection[str]) -> "Translation":
        """Return a copy without the options `names`."""
        return dataclasses.replace(self, options={name: self.options[name] for name in self.options if name not in names})

    def lost(self, effect: Effect) -> list[Dropped]:
        return [entry for entry in self.dropped if entry.effect is effect]

    def toml(self) -> str:
        """Write the options as a TOML file for --config."""
        lines = [f"# from {self.source}"]
        for name, value in self.options.items():
            default = f"  # a default of {self.source}" if name in self.defaults else ""
            lines.append(f"{name.replace('_', '-')} = {_literal(value)}{default}")
        return "\n".join(lines) + "\n"

    def record(self) -> dict[str, Any]:
        """Return the JSON object that `lt-train import --json` prints."""
        return {
            "v": 1,
            "kind": "import",
            "source": self.source,
            "options": {name.replace("_", "-"): value for name, value in self.options.items()},
            "defaults": sorted(name.replace("_", "-") for name in self.defaults),
            "not_carried": [entry.record() for entry in self.dropped],
        }


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    # JSON strings are valid TOML strings, except that TOML forbids an unescaped DEL.
    return console.visible_json(json.dumps(value, ensure_ascii=False)) if isinstance(value, str) else repr(value)


class Ledger:
    """The dotted keys of a configuration. A translation takes or drops each key once."""

    def __init__(
        self,
        source: str,
        values: Mapping[str, Any],
        written: Mapping[str, str] | None = None,
        row: Callable[[str], Row | None] = lambda key: None,
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ):
        """`written` maps keys to the names in the configuration, if those differ.

        `row` returns the effect of dropping a key, and `defaults` are the trainer's default values.
        """
        self._row, self._upstream = row, defaults
        self.source = source
        self._written = written or {}
        self._remaining = dict(values)
        self._original = dict(values)
        self._carried: set[str] = set()
        self._options: dict[str, Any] = {}
        self._defaults: set[str] = set()
        self._dropped: list[Dropped] = []

    def has(self, key: str) -> bool:
        return key in self._remaining

    def peek(self, key: str) -> Any:
        return self._remaining.get(key)

    def original_values(self) -> Mapping[str, Any]:
        """Return all keys with their original values, including keys that were taken or dropped."""
        return self._original

    def remaining_keys(self) -> list[str]:
        """List the keys that were neither taken nor dropped yet."""
        return list(self._remaining)

    def take(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, which the caller has to carry over or drop. Otherwise `close` lists the key."""
        return number(self._remaining.pop(key, default))

    def take_number(self, key: str) -> Any:
        """Take a number. Returns None if `key` is missing; drops a value that is not a finite number."""
        value = self.take(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is None or is_number:
            return value
        return self._refuse(key, value, A_NUMBER)

    def take_text(self, key: str, default: str | None = None) -> Any:
        """Take a text. Returns `default` if `key` is missing; drops a value that is not a text."""
        value = self._remaining.pop(key, None)
        if value is None:
            return default
        is_text = isinstance(value, str) and "\0" not in value
        return value if is_text else self._refuse(key, value, A_TEXT, default)

    def carry(self, key: str, option: str) -> None:
        """Carry `key` over as `option`. A value that lt-train rejects is dropped; a key without a value is skipped."""
        self.carry_value(key, option, self.take(key))

    def carry_value(self, key: str, option: str, value: Any) -> None:
        """Carry the value of `key` over, which the caller took before."""
        if value is None:
            return
        try:
            self.set(option, accepted(options()[option], value), key)
        except click.BadParameter:
            self._drop(key, value, f"lt-train takes {expected(options()[option])} there", self.effect(key, value))

    def flag(self, key: str, option: str) -> None:
        """Carry a switch over if it is on."""
        if self.take(key):
            self.set(option, True, key)

    def set(self, option: str, value: Any, *keys: str) -> None:
        """Set `option`, and mark `keys` as carried over by it. A secret is dropped instead."""
        if credentials.holds(value):
            self._drop(keys[0] if keys else option, value, HOLDS_SECRET)
        else:
            self._options[option] = value
            self._defaults.discard(option)
        self._carried.update(keys)

    def default(self, option: str, value: Any, *keys: str) -> None:
        """Set `option` unless it is set. `value` is the other trainer's default if lt-train's differs, or follows from `keys`."""
        self._carried.update(keys)
        if option not in self._options:
            self._options[option] = value
            self._defaults.add(option)

    def withdraw(self, option: str) -> None:
        """Remove an option that was carried over."""
        self._options.pop(option, None)

    def get(self, option: str) -> Any:
        return self._options.get(option)

    def drop(self, key: str, reason: str, effect: Effect = Effect.NONE) -> None:
        """Drop `key`. `reason` explains why dropping it changes nothing, or `effect` says what it changes."""
        if key in self._remaining:
            self._drop(key, self._remaining.pop(key), reason, effect)

    def effect(self, key: str, value: Any) -> Effect:
        """Return the effect of dropping `key`, from the trainer's table or from the name of the key."""
        row = self._row(key)
        return row.effect if row else effect_of(key, value)

    def upstream(self, key: str) -> Any:
        """Return the trainer's default for `key`, or None if it is unknown."""
        return self._upstream.get(key)

    def knows(self, key: str) -> bool:
        """Whether the trainer has an option `key`."""
        return key in self._upstream

    def is_default(self, key: str, value: Any) -> bool:
        """Whether `value` is the trainer's default for `key`."""
        return key in self._upstream and is_default(value, self._upstream[key])

    def drop_known(self) -> None:
        """Drop the keys with the trainer's default value and the keys in the trainer's table."""
        for key in self.remaining_keys():
            value, row = self._remaining[key], self._row(key)
            if self.is_default(key, value):
                self.drop(key, f"{self.source}'s default, as without it")
            elif row:
                self.drop(key, row.reason, row.effect)

    def drop_value(self, key: str, value: Any, reason: str, effect: Effect | None = None) -> None:
        """Drop a key that was taken before. Without `effect`, the trainer's table or the name of the key sets the effect."""
        self._drop(key, value, reason, effect)

    def drop_all(self, reasons: Mapping[str, str]) -> None:
        """Drop the keys in `reasons`. A name that ends in a dot drops all keys below it, with the effects of those keys."""
        for name, reason in reasons.items():
            if name.endswith("."):
                for key in [key for key in self._remaining if key.startswith(name)]:
                    self._drop(key, self._remaining.pop(key), reason)
            else:
                self.drop(name, reason)

    def close(self, unknown: str, unknown_variables: Collection[str] = ()) -> Translation:
        for key, value in self._remaining.items():
            is_known = key in self._upstream
            self._drop(key, value, "lt-train has no such setting" if is_known else unknown, is_unknown=not is_known)
        listed = {entry.key for entry in self._dropped}
        for key, value in self._original.items():
            if self._name(key) not in listed and key not in self._carried:
                self._close_taken(key, value)
        names = tuple(str(self._original[key]) for key in NAMING if isinstance(self._original.get(key), str | int | float))
        return Translation(
            self.source, self._options, frozenset(self._defaults), tuple(self._dropped), names, tuple(unknown_variables)
        )

    def _close_taken(self, key: str, value: Any) -> None:
        """Drop a key that the translation took without setting an option. A value that no table knows may change the run."""
        is_off = not value and not self.upstream(key)
        if is_off or self.is_default(key, value):
            self._drop(key, value, IS_OFF if is_off else IS_IMPLIED, Effect.NONE)
        else:
            self._drop(key, value, NOT_CARRIED)

    def _refuse(self, key: str, value: Any, reason: str, otherwise: Any = None) -> Any:
        self._drop(key, value, reason)
        return otherwise

    def _drop(self, key: str, value: Any, reason: str, effect: Effect | None = None, is_unknown: bool = False) -> None:
        if value is None:
            reason = NOT_SET
            effect = Effect.NONE
        if value is not None or key in self._original:
            shown = credentials.NOT_SHOWN if credentials.is_secret(key) else covered(value)
            shown = " ".join(map(str, shown)) if isinstance(shown, list) else shown
            self._dropped.append(Dropped(self._name(key), shown, reason, effect or self.effect(key, value), is_unknown))

    def _name(self, key: str) -> str:
        return str(covered(self._written.get(key, key)))


@functools.cache
def options() -> dict[str, click.Option]:
    """Map every spelling of lt-train's options, with underscores, to the option."""
    declared = [option for option in schema().params if isinstance(option, click.Option)]
    return {spelling.lstrip("-").replace("-", "_"): option for option in declared for spelling in option.opts}


def accepted(option: click.Option, value: Any) -> Any:
    """Convert `value` for `option`. Raises click.BadParameter for a value that `option` does not accept."""
    if option.multiple or option.nargs != 1:
        if not isinstance(value, list) or (option.nargs not in (1, -1) and len(value) != option.nargs):
            raise click.BadParameter("a list")
        return [_accepted(option, entry) for entry in value]
    return _accepted(option, value)


def _accepted(option: click.Option, value: Any) -> Any:
    if option.is_flag:
        if not isinstance(value, bool):
            raise click.BadParameter("a switch")
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
        raise click.BadParameter("a value")
    if isinstance(value, float) and isinstance(option.type, click.types.IntParamType):
        if not value.is_integer():
            raise click.BadParameter("a whole number")
        value = int(value)
    if not isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
        value = str(value)
    converted = option.type.convert(value, option, None)
    if isinstance(converted, float) and not math.isfinite(converted):
        raise click.BadParameter("a number")
    if isinstance(converted, int) and abs(converted) > LARGEST:
        raise click.BadParameter("a smaller number")
    return converted if isinstance(converted, int | float) else value


def expected(option: click.Option) -> str:
    """Describe the values that `accepted` accepts."""
    if option.is_flag:
        return "true or false"
    kind = option.type
    if isinstance(kind, click.Choice):
        words = f"one of {', '.join(map(str, kind.choices))}"
    elif isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        words = "a whole number" if isinstance(kind, click.types.IntParamType) else "a finite number"
        low, high = getattr(kind, "min", None), getattr(kind, "max", None)
        if high is None and isinstance(kind, click.types.IntParamType):
            high = LARGEST
        if low is not None:
            words += f" above {low}" if getattr(kind, "min_open", False) else f" from {low}"
        if high is not None:
            words += f" below {high}" if getattr(kind, "max_open", False) else f" up to {high}"
    else:
        words = "a text"
    if option.multiple or option.nargs != 1:
        return f"a list of {option.nargs} values, each {words}" if option.nargs > 1 else f"a list, each entry {words}"
    return words


def number(value: Any) -> Any:
    """Convert a number such as 1e-5 from text, because YAML reads it as a text if it has no point."""
    return float(value) if isinstance(value, str) and "e" in value.lower() and NUMBER.fullmatch(value) else value


def flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested tables into dotted keys. Raises BadData above MOST_KEYS, because YAML aliases can multiply keys."""
    flat: dict[str, Any] = {}

    def add(part: Mapping[str, Any], prefix: str) -> None:
        for name, value in part.items():
            if isinstance(value, Mapping) and value:
                add(value, f"{prefix}{name}.")
            elif len(flat) < MOST_KEYS:
                flat[f"{prefix}{name}"] = value
            else:
                raise BadData(f"more than {MOST_KEYS} keys: not a configuration")

    add(table, "")
    return flat
