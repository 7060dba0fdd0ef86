"""Releases of megatron-core, which decide what it can compute and which checkpoints it reads."""

from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from types import MappingProxyType

from lt_shared.console import BadConfig

TRIED = "0.16.1 or 0.19.2"
NOTHING: Mapping[str, object] = MappingProxyType({})


def release(version: str) -> tuple[int, ...]:
    """(0, 19) of 0.19.2."""
    return tuple(int(number) for number in version.split(".")[:2])


def refuse_unknown(
    function: str,
    positional: Iterable[object],
    named: Mapping[str, object],
    known: Collection[str] = (),
    neutral: Mapping[str, object] = NOTHING,
) -> None:
    """Raise BadConfig for an argument of megatron-core that a replacement of `function` would pass over.

    None changes nothing. `known` are names whose meaning the replacement has from elsewhere; `neutral` values change nothing.
    """
    numbered = {f"number {number}": value for number, value in enumerate(positional, 1)}
    for name, value in (numbered | dict(named)).items():
        if value is None or name in known or (name in neutral and neutral[name] == value):
            continue
        raise BadConfig(
            f"megatron-core {metadata.version('megatron-core')} passes {function} the argument {name}, which lt-train's"
            " replacement of this function does not know",
            f"install megatron-core {TRIED}",
        )
