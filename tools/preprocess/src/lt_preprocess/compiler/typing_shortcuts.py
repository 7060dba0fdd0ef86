"""Skip work of numba that functions with integers and addresses do not need: it took a quarter of the time to compile.

- numba's pipeline has passes for closures, generators, exceptions, literals and array expressions; a pass that may have changed
the
  function computes the live ranges of its variables again. `Pipeline` has only the passes that typing and lowering need.
- For each `&` numba tries a dozen templates, and most fail with an error that is formatted and discarded. `remembered_calls`
tries
  once for each combination of types.
- numba imports every package that registers as an extension of numba. `entry_points_left_out` imports none.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from numba.core import compiler as numba_compiler
from numba.core import compiler_machinery, entrypoints, typed_passes, untyped_passes
from numba.core import types as numba_types
from numba.core.registry import cpu_target

types: Any = numba_types
compiler: Any = numba_compiler
registry: Any = cpu_target
extensions: Any = entrypoints
machinery: Any = compiler_machinery

_PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.IRLegalization,
    typed_passes.AnnotateTypes,
    typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)


class Pipeline(compiler.CompilerBase):  # type: ignore[misc]
    """The passes that make code of a function without closures, generators, exceptions, and expressions of arrays."""

    def define_pipelines(self) -> list[Any]:
        passes = machinery.PassManager("lt_preprocess")
        for step in _PASSES:
            passes.add_pass(step, step.__name__)
        passes.finalize()
        return [passes]


@contextlib.contextmanager
def entry_points_left_out() -> Iterator[None]:
    """Let numba take its extensions for loaded. The next who compiles in this process loads them."""
    before = extensions._already_initialized
    extensions._already_initialized = True
    try:
        yield
    finally:
        extensions._already_initialized = before


@contextlib.contextmanager
def remembered_calls() -> Iterator[None]:
    """Cache the signature that numba resolves for each operator or intrinsic and its integer and boolean argument types."""
    context = registry.typing_context
    resolve, signatures = context.resolve_function_type, {}

    def remembered(function: Any, arguments: Any, keywords: Any) -> Any:
        is_simple = isinstance(function, types.Function) and all(
            isinstance(kind, types.Integer | types.Boolean) for kind in arguments
        )
        if keywords or not is_simple:
            return resolve(function, arguments, keywords)
        key = function, arguments
        if key not in signatures:
            signatures[key] = resolve(function, arguments, keywords)
        return signatures[key]

    context.resolve_function_type = remembered
    try:
        yield
    finally:
        del context.resolve_function_type
