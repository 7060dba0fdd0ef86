"""What megatron-core 0.16 and 0.19 need to run without CUDA; installed only when a rank trains on a CPU.

megatron-core reaches for CUDA in six ways, and each has one remedy here:

1. functions such as torch.cuda.current_device() and synchronize(), called without a check: replaced in `torch.cuda`;
2. tensors made with device="cuda" (the schedules' token counter, gradient clipping, the optimizer's buffers) and `.cuda()`: the
   factory functions of torch send that device to the CPU, and pin no memory. A TorchFunctionMode would catch the same, but runs
   Python for every operation of every step; wrapping factories costs nothing elsewhere;
3. the random state tracker reads and sets the CUDA generator: it gets the CPU's;
4. experts on other ranks: the dispatcher copies the numbers of tokens to the host on a stream of its own; on a CPU they only have
   to become arrays, which is what the copy also does;
5. the optimizer asks whether a parameter's type is called "torch.cuda.FloatTensor": `Tensor.type()` answers with that name;
6. TransformerEngine's and apex's optimizer kernels are used wherever these packages are installed, and read the CPU's memory as a
   GPU's: here the packages count as absent.

torch.compile is replaced by nothing: megatron-core wraps small functions in it at import (`jit_fuser`); on a CPU that costs tens
of seconds and needs a C++ compiler.
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

CPU = "cpu"
FACTORIES = ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros", "empty_like", "zeros_like", "ones_like")


def install(accelerator: str) -> None:
    """Redirect what megatron-core asks of `accelerator`, torch's name for GPUs, to the CPU. Call before megatron is imported."""
    for package in ("transformer_engine", "apex"):
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]
    _replace_cuda_functions()
    _redirect_factories(accelerator)
    setattr(torch.Tensor, accelerator, lambda tensor, *args, **kwargs: tensor)
    setattr(torch.Tensor, "type", _type_under_cuda_name(torch.Tensor.type, accelerator))  # noqa: B010
    setattr(torch, "compile", _uncompiled)  # noqa: B010
    _use_cpu_random_state()
    _keep_token_counts()


class _Stream:
    """In place of a CUDA stream: what a CPU is asked to do is done in order anyway."""

    def __init__(self, *arguments: Any, **options: Any):
        pass

    def wait_stream(self, other: "_Stream") -> None:
        pass


def _uncompiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """torch.compile, as a call or as a decorator, that returns the function itself."""
    return function if function else lambda decorated: decorated


def _replace_cuda_functions() -> None:
    cpu = torch.device(CPU)
    replacements: dict[str, Callable[..., Any]] = {
        "current_device": lambda: cpu,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "manual_seed": torch.manual_seed,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "current_stream": lambda device=None: _Stream(),
        "default_stream": lambda device=None: _Stream(),
        "Stream": _Stream,
        "stream": lambda stream: contextlib.nullcontext(),
    }
    for name, function in replacements.items():
        setattr(torch.cuda, name, function)


def _redirect_factories(accelerator: str) -> None:
    with torch.device("meta"):
        torch.empty(0)  # torch's device context remembers at its first use which functions it is for: these, not the new ones
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name), accelerator))


def _on_cpu(factory: Callable[..., Any], accelerator: str) -> Callable[..., Any]:
    @functools.wraps(factory)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and str(device).startswith(accelerator):
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)
        return factory(*args, **kwargs)

    return redirected


def _type_under_cuda_name(original: Callable[..., Any], accelerator: str) -> Callable[..., Any]:
    def type_of(tensor: torch.Tensor, dtype: Any = None, **kwargs: Any) -> Any:
        if dtype is not None:
            return original(tensor, dtype, **kwargs)
        return original(tensor).replace("torch.", f"torch.{accelerator}.", 1)

    return type_of


def _use_cpu_random_state() -> None:
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


def _keep_token_counts() -> None:
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher as Dispatcher

    def as_arrays(dispatcher: Any, point: str, tokens_per_expert: torch.Tensor | None = None) -> torch.Tensor | None:
        for name in ("input_splits", "output_splits"):
            splits = getattr(dispatcher, name)
            if isinstance(splits, torch.Tensor):
                setattr(dispatcher, name, splits.numpy())
        return tokens_per_expert

    Dispatcher.cuda_dtoh_stream = "none"
    Dispatcher._maybe_dtoh_and_synchronize = as_arrays
