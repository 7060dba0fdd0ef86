"""Write pickles that name classes of torch and Megatron without importing them.

`import torch` takes three seconds, longer than copying a gigabyte, and a pickle has only the names of classes. The standard
pickler imports every class that it names, so the few opcodes that checkpoints need are written here (protocol 2, as
torch.save).
"""

import dataclasses
import struct
from collections.abc import Iterable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Global:
    """A class, function or constant by name: `Global("torch", "bfloat16")`."""

    module: str
    name: str


@dataclasses.dataclass(frozen=True)
class Call:
    """The result of calling a global."""

    function: Global
    arguments: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Instance:
    """An object made by `__new__` without arguments; `state` goes to `__setstate__` or, a dict, becomes its attributes."""

    type: Global
    state: Any = None


@dataclasses.dataclass(frozen=True)
class Persistent:
    """A persistent id: torch stores a tensor's values outside of the pickle and refers to them by it."""

    identifier: tuple[Any, ...]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """A dict as (key, value) pairs: for keys that are not hashable here, `Instance`s, and for pairs made while they are written.

    An index of DeepSeek-V3 has 150,000 objects, which take 150 MB at once.
    """

    items: Iterable[tuple[Any, Any]]


def dumps(value: Any) -> bytes:
    """The pickle of plain values (None, bool, int, float, str, bytes, tuple, list, dict) and of the classes above.

    Raises TypeError for anything else.
    """
    writer = _Writer()
    writer.write(value)
    return b"\x80\x02" + writer.written + b"."


class _Writer:
    """Bytes are appended to one buffer. A class that is named a second time is numbered there, and then referred to by that."""

    def __init__(self) -> None:
        self.written = bytearray()
        self._named: set[Global] = set()
        self._numbers: dict[Global, int] = {}

    def write(self, value: Any) -> None:
        put = self.written.extend
        if value is None:
            put(b"N")
        elif value is True or value is False:
            put(b"\x88" if value else b"\x89")
        elif isinstance(value, int):
            put(_integer(value))
        elif isinstance(value, float):
            put(b"G" + struct.pack(">d", value))
        elif isinstance(value, str):
            encoded = value.encode("utf-8", "surrogatepass")
            put(b"X" + struct.pack("<I", len(encoded)) + encoded)
        elif isinstance(value, bytes):
            self.write(Call(Global("_codecs", "encode"), (value.decode("latin-1"), "latin1")))
        elif isinstance(value, tuple):
            self._write_tuple(value)
        elif isinstance(value, list):
            put(b"](")
            for entry in value:
                self.write(entry)
            put(b"e")
        elif isinstance(value, dict | Pairs):
            put(b"}(")
            for key, entry in value.items() if isinstance(value, dict) else value.items:
                self.write(key)
                self.write(entry)
            put(b"u")
        else:
            self._write_object(value)

    def _write_tuple(self, value: tuple[Any, ...]) -> None:
        if not value:
            self.written.extend(b")")
            return
        self.written.extend(b"(")
        for entry in value:
            self.write(entry)
        self.written.extend(b"t")

    def _write_object(self, value: Any) -> None:
        put = self.written.extend
        if isinstance(value, Global):
            self._write_global(value)
        elif isinstance(value, Call):
            self.write(value.function)
            self._write_tuple(value.arguments)
            put(b"R")
        elif isinstance(value, Instance):
            self.write(value.type)
            put(b")\x81")
            if value.state is not None:
                self.write(value.state)
                put(b"b")
        elif isinstance(value, Persistent):
            self._write_tuple(value.identifier)
            put(b"Q")
        else:
            raise TypeError(f"a {type(value).__name__} has no place in a checkpoint's pickle")

    def _write_global(self, value: Global) -> None:
        put = self.written.extend
        if value in self._numbers:
            put(b"j" + struct.pack("<I", self._numbers[value]))
            return
        put(b"c" + f"{value.module}\n{value.name}\n".encode())
        if value in self._named:
            self._numbers[value] = len(self._numbers)
            put(b"r" + struct.pack("<I", self._numbers[value]))
        self._named.add(value)


def _integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    encoded = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(encoded)]) + encoded
