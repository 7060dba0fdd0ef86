"""Object code of kernels, loaded into this process and called; LLVM's library links it, no compiler is imported.

Object files lie in `cache_directory`, each with a checksum at its end: one flipped bit would end the process, or make another
encoder. A file that is not as it was written is made anew, in its place.
"""

import contextlib
import ctypes
import functools
import os
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import llvmlite.binding

from lt_shared.console import warn
from lt_shared.files.checksums import crc32

CHECKSUM_BYTES = 4


@functools.cache
def processor() -> str:
    """What machine code depends on besides the source: this processor and the compiler."""
    features = llvmlite.binding.get_host_cpu_features().flatten()
    versions = " ".join(f"{name} {metadata.version(name)}" for name in ("numba", "llvmlite"))
    return f"{llvmlite.binding.get_host_cpu_name()} {features} {versions}"


def read(path: Path) -> bytes | None:
    """The object code in a file; None when there is no file, or it is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    code, checksum = content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]
    if len(checksum) == CHECKSUM_BYTES and crc32(code) == int.from_bytes(checksum, "little"):
        return code
    warn(f"{path}: not as it was written, by its checksum: compiled anew")
    return None


def write(path: Path, code: bytes) -> None:
    """Write object code to a file atomically; on failure the old file stays. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}", delete=False) as file:
        try:
            file.write(code + crc32(code).to_bytes(CHECKSUM_BYTES, "little"))
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


@functools.cache
def _linker() -> Any:
    binding = llvmlite.binding
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_triple(binding.get_process_triple()).create_target_machine()
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


def load(code: bytes, entry: str) -> Callable[[Any, Any], int]:
    """The function `entry` of object code; it runs without the GIL."""
    linker = _linker()
    linker.add_object_file(llvmlite.binding.ObjectFileRef.from_data(code))
    linker.finalize_object()
    loaded: Callable[[Any, Any], int] = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(
        linker.get_function_address(entry)
    )
    return loaded
