"""From declared functions to the object code of a kernel, by numba and LLVM: the only module that imports them both.

numba produces LLVM's intermediate representation of every function, and nothing else: by default it would also optimize every
called function, and generate machine code and two wrappers, in half of the compilation time. The representation of a kernel and
its callees is optimized once, together, and becomes one object file with one entry point:

    int32_t entry(const int64_t *words, int64_t *results)

which unpacks the words that `arguments` has flattened. Compiled functions create no arrays and raise no exceptions, so nothing
counts references: with reference counts an encoder of a dozen tables spent nine tenths of its time on counting.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba import types as numba_types
from numba.core import cgutils as numba_cgutils
from numba.core import codegen as numba_codegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.extending import intrinsic, typeof_impl
from numba.np import arrayobj as numba_arrayobj

from lt_preprocess.compiler.arguments import Array, Group, Kind
from lt_preprocess.compiler.declarations import Inner, Intrinsic
from lt_preprocess.compiler.typing_shortcuts import Pipeline, entry_points_left_out, remembered_calls

types: Any = numba_types
cgutils: Any = numba_cgutils
codegen: Any = numba_codegen
arrayobj: Any = numba_arrayobj

# numba's own tests use it; its type stubs do not list it.
_BARE: Any = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": Pipeline}

_WORD = ir.IntType(64)
_STATUS = ir.IntType(32)


class _Library(codegen.JITCodeLibrary):  # type: ignore[misc]
    """LLVM's representation of a function and its callees, neither optimized nor loaded into this process."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Skip numba's optimization: `object_code` optimizes a kernel with its callees once."""

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def object_code(self, entry: str) -> bytes:
        """Optimize `entry` with its callees and return the object file."""
        self._ensure_finalized()
        for function in self._final_module.functions:
            if not function.is_declaration and function.name != entry:
                function.linkage = "internal"
        super()._optimize_final_module()
        return bytes(self._codegen._tm.emit_object(self._final_module))


class _Codegen(codegen.JITCPUCodegen):  # type: ignore[misc]
    """Code for this very processor, whatever a .numba_config.yaml in the current directory says."""

    _library_class = _Library

    def _get_host_cpu_name(self) -> str:
        return str(llvmlite.binding.get_host_cpu_name())

    def _get_host_cpu_features(self) -> str:
        return str(llvmlite.binding.get_host_cpu_features().flatten())


def _never_called(library: Any, description: Any, environment: Any) -> Any:
    """What numba would call from Python. It tells compiled functions apart by it, so each needs another."""
    return [].append


@functools.cache
def _context() -> Any:
    with global_compiler_lock:
        return cpu_target.target_context.subtarget(_internal_codegen=_Codegen("lt_preprocess"), get_executable=_never_called)


@contextlib.contextmanager
def _target() -> Iterator[Any]:
    """numba's target with our code generator. Whoever else uses numba in this process waits meanwhile."""
    with global_compiler_lock, entry_points_left_out(), remembered_calls():
        context = _context()
        attributes = vars(cpu_target)
        before = attributes["_toplevel_target_context"]
        attributes["_toplevel_target_context"] = context
        try:
            yield context
        finally:
            attributes["_toplevel_target_context"] = before


@functools.cache
def _dispatcher(inner: Inner) -> Any:
    return numba.njit(forceinline=inner.is_inlined, **_BARE)(inner.function)


@typeof_impl.register(Inner)
def _type_of_inner(inner: Inner, context: Any) -> Any:
    return types.Dispatcher(_dispatcher(inner))


@functools.cache
def _defined(declared: Intrinsic) -> Any:
    compiled_intrinsic = intrinsic(declared.define)
    cpu_target.typing_context.refresh()
    return compiled_intrinsic


@typeof_impl.register(Intrinsic)
def _type_of_intrinsic(declared: Intrinsic, context: Any) -> Any:
    return cpu_target.typing_context.resolve_value_type(_defined(declared))


def object_code(function: Callable[..., Any], kinds: tuple[Kind, ...], entry: str, results: int) -> bytes:
    """Compile a function for these argument kinds. The object file defines `entry`, which writes `results` integers."""
    with _target() as context:
        dispatcher: Any = numba.njit(**_BARE)(function)
        signature = tuple(map(_type, kinds))
        dispatcher.compile(signature)
        compiled = dispatcher.overloads[signature]
        library = context.codegen().create_library(entry)
        with context.push_code_library(library):
            library.add_ir_module(_entry_module(context, library, compiled.fndesc, entry, results))
        library.add_linking_library(compiled.library)
        code: bytes = library.object_code(entry)
        return code


def _type(kind: Kind) -> Any:
    if isinstance(kind, Array):
        return types.Array(numba.from_dtype(np.dtype(kind.dtype)), kind.dimensions, "C")
    if isinstance(kind, Group):
        return types.BaseTuple.from_types([_type(member) for member in kind.members], kind.type)
    return types.boolean if kind == "bool" else getattr(types, kind)


def _entry_module(context: Any, library: Any, description: Any, entry: str, results: int) -> Any:
    module = library.create_ir_module(entry)
    function = ir.Function(module, ir.FunctionType(_STATUS, [_WORD.as_pointer()] * 2), entry)
    builder = ir.IRBuilder(function.append_basic_block())
    words, output = function.args
    offsets = iter(range(1 << 16))

    def next_word() -> Any:
        return builder.load(builder.gep(words, [_WORD(next(offsets))]))

    arguments = [_unpacked(context, builder, kind, next_word) for kind in description.argtypes]
    callee = context.declare_function(module, description)
    status, value = context.call_conv.call_function(builder, callee, description.restype, description.argtypes, arguments)
    integers = list(_integers(context, builder, description.restype, value))
    assert len(integers) == results, f"{description.qualname} does not return what its annotation says"
    for number, integer in enumerate(integers):
        builder.store(integer, builder.gep(output, [_WORD(number)]))
    builder.ret(status.code)
    return module


def _unpacked(context: Any, builder: Any, kind: Any, next_word: Callable[[], Any]) -> Any:
    """The value of a numba type, from the next words."""
    if isinstance(kind, types.BaseTuple):
        members = [_unpacked(context, builder, member, next_word) for member in kind.types]
        return context.make_tuple(builder, kind, members)
    if isinstance(kind, types.Array):
        return _array(context, builder, kind, next_word)
    return context.cast(builder, next_word(), types.int64, kind)


def _array(context: Any, builder: Any, kind: Any, next_word: Callable[[], Any]) -> Any:
    array = context.make_array(kind)(context, builder)
    item = context.get_data_type(kind.dtype)
    item_bytes = context.get_abi_sizeof(item)
    data = builder.inttoptr(next_word(), item.as_pointer())
    shape = [next_word() for _ in range(kind.ndim)]
    strides: list[Any] = []
    step = _WORD(item_bytes)
    for size in reversed(shape):
        strides.insert(0, step)
        step = builder.mul(step, size)
    arrayobj.populate_array(array, data=data, shape=shape, strides=strides, itemsize=item_bytes, meminfo=None)
    return array._getvalue()


def _integers(context: Any, builder: Any, kind: Any, value: Any) -> Iterator[Any]:
    """The integers of a returned value, as words."""
    if isinstance(kind, types.BaseTuple):
        for member, member_value in zip(kind.types, cgutils.unpack_tuple(builder, value), strict=True):
            yield from _integers(context, builder, member, member_value)
    elif kind != types.none:
        yield context.cast(builder, value, kind, types.int64)
