"""A module of megatron-core or torch as it was read, and the refusal of arguments that a later release passes."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any

from lt_shared.console import BadConfig

MEGATRON_CORE = "megatron-core"
TORCH = "torch"
# The releases that lt-train is tested with.
TESTED_VERSIONS = ("0.16.1", "0.19.2")
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Upstream:
    """The replaced functions and values of one module.

    :param module: the upstream module
    :param package: the distribution with this module
    :param versions: the releases of `package` that were read
    :param signatures: "function" or "Class.method" and its parameters, as `inspect.signature` prints them without annotations; by
        version if these differ or a release lacks the function; None for a compiled function, which has no signature
    :param values: names that take no arguments: flags, attributes that hold objects, modules and classes of other packages
    """

    module: str
    package: str
    versions: tuple[str, ...]
    signatures: Mapping[str, str | Mapping[str, str] | None] = dataclasses.field(default_factory=dict)
    values: tuple[str, ...] = ()

    def qualified(self, name: str) -> str:
        """Return "Class.method" unchanged, "module.function" for a function of the module."""
        return name if "." in name else f"{self.module.rpartition('.')[2]}.{name}"

    def refuse_unknown(
        self,
        function: str,
        positional: Iterable[object],
        named: Mapping[str, object],
        known: Collection[str] = (),
        neutral: Mapping[str, object] = NOTHING,
    ) -> None:
        """Raise BadConfig for an argument of `function`, one of `signatures`, that its replacement would pass over."""
        if positional or named:
            refuse_unknown(self.qualified(function), positional, named, known, neutral, self.package, self.versions)


def refuse_unknown(
    function: str,
    positional: Iterable[object],
    named: Mapping[str, object],
    known: Collection[str] = (),
    neutral: Mapping[str, object] = NOTHING,
    package: str = MEGATRON_CORE,
    versions: tuple[str, ...] = TESTED_VERSIONS,
) -> None:
    """Raise BadConfig for an argument that lt-train's replacement or override of `function` would pass over.

    None changes nothing. The replacement has the meaning of `known` names from elsewhere. `neutral` values change nothing.
    """
    numbered = {f"number {number}": value for number, value in enumerate(positional, 1)}
    for name, value in (numbered | dict(named)).items():
        if value is None or name in known or (name in neutral and neutral[name] == value):
            continue
        release = f"{package} {metadata.version(package)}"
        caller = f"{release} passes {function}" if package == MEGATRON_CORE else f"{function} of {release} is passed"
        raise BadConfig(
            f"{caller} the argument {name}, which lt-train's replacement of this function does not know",
            f"install {package} {' or '.join(versions)}",
        )


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within, the attribute `name` of `owner` is `value`."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
