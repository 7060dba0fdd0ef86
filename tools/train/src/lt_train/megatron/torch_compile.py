"""`torch.compile`: compile a function when it is called first, and nothing on a CPU.

megatron-core (`jit_fuser`) and quack wrap small functions in torch.compile when they are imported. This imports torch's compiler,
1.4 s, but few runs call such a function. On a CPU, compiling them takes tens of seconds and needs a C++ compiler.
"""

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from lt_train.megatron.upstream import TORCH, Upstream

UPSTREAM = Upstream(
    "torch",
    TORCH,
    versions=("2.11.0", "2.13.0", "2.15.0"),
    signatures={
        "compile": {
            "2.11.0": (
                "(model=None, *, fullgraph=False, dynamic=None, backend='inductor', mode=None, options=None, disable=False)"
            ),
            "2.13.0": (
                "(model=None, *, fullgraph=False, dynamic=None, backend=None, mode=None, options=None, name=None, disable=False,"
                " recompile_limit=None, isolate_recompiles=False, shapes_spec=None)"
            ),
            "2.15.0": (
                "(model=None, *, fullgraph=False, dynamic=None, backend=None, mode=None, options=None, name=None, disable=False,"
                " recompile_limit=None, isolate_recompiles=False, dynamic_shapes=None)"
            ),
        }
    },
)
# Options for the compilation of a function; no option changes its result.
OPTIONS = (
    *("fullgraph", "dynamic", "backend", "mode", "options", "name", "disable"),
    *("recompile_limit", "isolate_recompiles", "shapes_spec", "dynamic_shapes"),
)


def compile_when_called() -> None:
    """Delay torch.compile until the first call of a function."""
    compile_now = torch.compile

    def compile_later(model: Callable[..., Any] | None = None, *unknown: Any, **options: Any) -> Any:
        UPSTREAM.refuse_unknown("compile", unknown, options, accepted=OPTIONS)
        if model is None:
            return functools.partial(compile_later, **options)
        if not isinstance(model, FunctionType):
            return compile_now(model, **options)
        compiled: list[Callable[..., Any]] = []

        @functools.wraps(model)
        def call(*arguments: Any, **named: Any) -> Any:
            # If a caller is being compiled, this function becomes a part of the caller.
            if torch.compiler.is_compiling():
                return model(*arguments, **named)
            if not compiled:
                compiled.append(compile_now(model, **options))
            return compiled[0](*arguments, **named)

        return call

    setattr(torch, "compile", compile_later)  # noqa: B010


def leave_uncompiled() -> None:
    """Make torch.compile return every function unchanged."""
    setattr(torch, "compile", _uncompiled)  # noqa: B010


def _uncompiled(model: Callable[..., Any] | None = None, *unknown: Any, **options: Any) -> Any:
    UPSTREAM.refuse_unknown("compile", unknown, options, accepted=OPTIONS)
    return model if model else lambda decorated: decorated
