"""Record a replaced module of megatron-core or torch, and refuse arguments that only a later release passes."""

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
    """The replaced functions and values of an upstream module.

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
        accepted: Collection[str] = (),
        neutral: Mapping[str, object] = NOTHING,
    ) -> None:
        """Raise BadConfig for an argument of `function`, a key of `signatures`, that its replacement would ignore."""
        if positional or named:
            refuse_unknown(self.qualified(function), positional, named, accepted, neutral, self.package, self.versions)


def refuse_unknown(
    function: str,
    positional: Iterable[object],
    named: Mapping[str, object],
    accepted: Collection[str] = (),
    neutral: Mapping[str, object] = NOTHING,
    package: str = MEGATRON_CORE,
    versions: tuple[str, ...] = TESTED_VERSIONS,
) -> None:
    """Raise BadConfig for an argument that lt-train's replacement or override of `function` would ignore.

    Arguments that are None or have their `neutral` value change nothing. The replacement handles `accepted` names itself.
    """
    numbered = {f"number {number}": value for number, value in enumerate(positional, 1)}
    for name, value in (numbered | dict(named)).items():
        if value is None or name in accepted or (name in neutral and neutral[name] == value):
            continue
        release = f"{package} {metadata.version(package)}"
        caller = f"{release} passes {function}" if package == MEGATRON_CORE else f"{function} of {release} is passed"
        raise BadConfig(
            f"{caller} the argument {name}, which lt-train's replacement of this function does not know",
            f"install {package} {' or '.join(versions)}",
        )


@contextlib.contextmanager
def replace_within(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set the attribute `name` of `owner` to `value` within the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
