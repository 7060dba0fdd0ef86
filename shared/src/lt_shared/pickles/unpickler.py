"""Read an untrusted pickle without executing its code.

`.metadata` and `common.pt` are pickles, and an ordinary unpickler calls whatever function a pickle names. Here every class of
torch, Megatron and a few standard modules becomes an inert `Record` that only keeps its state; any other name is refused. So
neither torch nor Megatron is needed, and an enumeration from a newer Megatron is no error.
"""

import enum
import functools
import io
import pickle
import types
from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING, Any

from lt_shared import memory
from lt_shared.console import BadData
from lt_shared.pickles import bounds

INERT_PACKAGES = {
    "_codecs", "_io", "argparse", "datetime", "enum", "io", "megatron", "numpy", "olmo_core", "pathlib", "signal", "torch",
    "transformer_engine", "types",
}  # fmt: skip


class OrderedDict(dict[Any, Any]):
    """A dict; the attributes that a module's state dict carries beside its entries are dropped."""

    def __setstate__(self, state: Any) -> None:
        pass


PLAIN_TYPES: dict[tuple[str, str], type] = {
    ("torch", "Size"): tuple,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "tuple"): tuple,
}
_MALFORMED = (pickle.UnpicklingError, EOFError, AttributeError, ImportError, LookupError, MemoryError, RecursionError, TypeError,
              ValueError, OverflowError)  # fmt: skip


class Record:
    """Stands in for an object of the class `name`: constructor arguments in `arguments`, pickled state as attributes."""

    name = ""
    arguments: tuple[Any, ...] = ()
    state: Any = None

    if TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any: ...

    def __init__(self, *arguments: Any):
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            if self.arguments and "arguments" in state:
                raise pickle.UnpicklingError("it has a state in place of its arguments")
            self.__dict__.update(state)
        else:
            self.state = state


class ComparedRecord(Record):
    """Stands in for an object whose class hashes and compares by content, which could lead round and round through others."""

    def __setstate__(self, state: Any) -> None:
        for value in state.values() if isinstance(state, dict) else (state,):
            if isinstance(value, ComparedRecord) and value.name not in COMPARED[self.name]:
                raise pickle.UnpicklingError(f"it has a {value.name} inside a {self.name}")
            if isinstance(value, tuple) and not all(isinstance(number, int) for number in value):
                raise pickle.UnpicklingError(f"it has a {self.name} of tuples that are not sizes")
        super().__setstate__(state)


_METADATA, _PLANNER = "torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.planner"
# By name, and which others such an object holds.
COMPARED = {
    f"{_METADATA}.MetadataIndex": (),
    f"{_PLANNER}.TensorWriteData": (),
    f"{_PLANNER}.WriteItem": (f"{_METADATA}.MetadataIndex", f"{_PLANNER}.TensorWriteData"),
    f"{_PLANNER}.SavePlan": (),
}


def _member(enumeration: Any, name: str) -> Record:
    """A member of an enumeration. Some releases of Python 3.11 pickle one as `getattr(class, name)`; any other use is refused."""
    if not (isinstance(enumeration, type) and issubclass(enumeration, Record)) or name.startswith("_"):
        raise pickle.UnpicklingError("it calls getattr on something other than an enumeration")
    return enumeration(name)


def _real_member(enumeration: Any, name: str) -> Any:
    if not (isinstance(enumeration, enum.EnumMeta) and name in enumeration.__members__):
        raise pickle.UnpicklingError("it calls getattr on something other than an enumeration")
    return enumeration[name]


@functools.lru_cache(maxsize=256)
def _record_class(name: str) -> type[Record]:
    """Made once: a pickle may name a class anew for each object, and a class takes more memory. No pickle changes it."""
    return type("Record", (ComparedRecord if name in COMPARED else Record,), {"name": name})


class _Unpickler(pickle.Unpickler):
    member = staticmethod(_member)

    def find_class(self, module: str, name: str) -> Any:
        # Protocols before 3 (`torch.save` writes 2) use Python 2's module for built-in names.
        module = "builtins" if module == "__builtin__" else module
        return self.member if (module, name) == ("builtins", "getattr") else self.look_up(module, name)

    def look_up(self, module: str, name: str) -> Any:
        if (module, name) in PLAIN_TYPES:
            return PLAIN_TYPES[module, name]
        if module.split(".")[0] not in INERT_PACKAGES:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which no checkpoint needs")
        return _record_class(f"{module}.{name}")

    def persistent_load(self, identifier: Any) -> Any:
        return identifier


def loads(data: bytes, origin: str) -> Any:
    """Unpickle `data`; a storage of a torch file is its identifier tuple. Raises BadData, naming `origin`, for anything else."""
    try:
        bounds.check(data)
        with memory.garbage_collection_paused():
            return _Unpickler(io.BytesIO(data)).load()
    except _MALFORMED as error:
        raise BadData(f"{origin}: not a readable pickle: {error}") from None


def load_next(data: bytes, begin: int, origin: str) -> tuple[Any, list[Any], int]:
    """Unpickle the pickle at byte `begin` of `data`, which other bytes may follow.

    Returns the object, the identifiers of the storages that it names, and the offset of the byte after the pickle. Raises BadData
    as `loads`.
    """
    identifiers: list[Any] = []

    class Collecting(_Unpickler):
        def persistent_load(self, identifier: Any) -> Any:
            identifiers.append(identifier)
            return identifier

    stream = io.BytesIO(data[begin:])
    try:
        bounds.check(stream.getvalue())
        with memory.garbage_collection_paused():
            loaded = Collecting(stream).load()
    except _MALFORMED as error:
        raise BadData(f"{origin}: not a readable pickle: {error}") from None
    return loaded, identifiers, begin + stream.tell()


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")

    def persistent_load(self, identifier: Any) -> Any:
        raise pickle.UnpicklingError("it refers to an object outside of it")


def load_plain(data: bytes, origin: str) -> Any:
    """Unpickle containers, texts and numbers only. The count of 64-bit numbers (times) is unlimited.

    Raises BadData, naming `origin`, for a pickle that names any class or function, and for a malformed one.
    """
    try:
        bounds.check(data, number_bytes_limit=8, large_limit=len(data))
        with memory.garbage_collection_paused():
            return _PlainUnpickler(io.BytesIO(data)).load()
    except _MALFORMED as error:
        raise BadData(f"{origin}: not a pickle of plain values: {error}", "do not load it: it may run code") from None


def names(data: bytes, origin: str) -> set[str]:
    """Return the classes and functions that a pickle names and an ordinary unpickler would call, as "module.name".

    `getattr` is left out where it only takes a member of an enumeration. Raises BadData for every other use of it.
    """
    return names_and_object(data, origin)[0]


def names_and_object(data: bytes, origin: str) -> tuple[set[str], Any]:
    """Return the results of `names` and `loads` from one pass over the pickle."""
    full_names = set()

    class Listing(_Unpickler):
        def look_up(self, module: str, name: str) -> Any:
            full_names.add(f"{module}.{name}")
            return super().look_up(module, name)

    try:
        bounds.check(data)
        with memory.garbage_collection_paused():
            loaded = Listing(io.BytesIO(data)).load()
    except _MALFORMED as error:
        raise BadData(f"{origin}: not a readable pickle: {error}") from None
    return full_names, loaded


class _Originals:
    """Restore the attributes of the classes that a pickle names.

    A pickle's state for a class or for an enumeration's member sets attributes in the whole process, and no unpickler refuses it.
    """

    # Python adds these itself, when it is asked for annotations or copies an object, and adds them again after they were removed.
    ADDED = ("__annotations__", "__slotnames__")

    def __init__(self) -> None:
        self._before: dict[int, tuple[Any, dict[str, Any]]] = {}

    def note(self, original: type) -> None:
        for noted in (original, *(original.__members__.values() if isinstance(original, enum.EnumMeta) else ())):
            self._before.setdefault(id(noted), (noted, dict(vars(noted))))

    def restore(self) -> None:
        """Undo such changes. Raises UnpicklingError when there were any."""
        changed = False
        for owner, before in self._before.values():
            now = dict(vars(owner))
            setter, deleter = (type.__setattr__, type.__delattr__) if isinstance(owner, type) else (object.__setattr__, delattr)
            for name in now.keys() - before.keys():
                deleter(owner, name)
                changed |= name not in self.ADDED
            for name, value in before.items():
                if name not in now or now[name] is not value:
                    setter(owner, name, value)
                    changed = True
        if changed:
            raise pickle.UnpicklingError("it changes a class")


def load_known(
    data: bytes,
    known: Set[str],
    origin: str,
    persistent_load: Callable[[Any], Any] | None = None,
    stand_ins: Mapping[str, Any] = types.MappingProxyType({}),
) -> Any:
    """Unpickle `data` into real objects. Only classes and functions in `known`, as "module.name", are ever looked up.

    For the names in `stand_ins` these functions and classes are taken instead. `getattr` takes a member of an enumeration and
    nothing else. Raises BadData, naming `origin`, for any other name, for a pickle that changes a class, and for a malformed one.
    """
    originals = _Originals()

    class Known(_Unpickler):
        member = staticmethod(_real_member)

        def look_up(self, module: str, name: str) -> Any:
            full_name = f"{module}.{name}"
            if full_name not in known:
                raise pickle.UnpicklingError(f"it refers to {full_name}, which no checkpoint needs")
            global_ = stand_ins[full_name] if full_name in stand_ins else pickle.Unpickler.find_class(self, module, name)
            if isinstance(global_, types.FunctionType):
                # A pickle could set attributes of the function itself.
                return functools.partial(global_).__call__
            if isinstance(global_, type):
                originals.note(global_)
            return global_

        def persistent_load(self, identifier: Any) -> Any:
            if persistent_load is None:
                raise pickle.UnpicklingError("it refers to an object outside of it")
            return persistent_load(identifier)

    try:
        bounds.check(data)
        try:
            with memory.garbage_collection_paused():
                return Known(io.BytesIO(data), fix_imports=False).load()
        finally:
            originals.restore()
    except (*_MALFORMED, RuntimeError) as error:
        raise BadData(f"{origin}: not a readable pickle: {error}", "do not load it: it may run code") from None
