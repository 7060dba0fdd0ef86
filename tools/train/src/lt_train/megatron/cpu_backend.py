"""`torch` and `torch.cuda` on a CPU: replacements that let megatron-core 0.16 and 0.19 run without CUDA.

megatron-core uses CUDA in six ways:

1. functions such as torch.cuda.current_device() and synchronize(), called without a check: replaced in `torch.cuda`;
2. tensors made with device="cuda" (the schedules' token counter, gradient clipping, the optimizer's buffers) and `.cuda()`: the
   factory functions of torch make these tensors on the CPU, and pin no memory;
3. the random state tracker reads and sets the CUDA generator: it gets the CPU's generator (`tensor_parallel_random.py`);
4. experts on other ranks: the dispatcher copies token counts on a CUDA stream (`token_dispatcher.py`);
5. the optimizer asks whether a parameter's type is called "torch.cuda.FloatTensor": `Tensor.type()` answers with that name;
6. TransformerEngine and apex: their optimizer kernels would read the CPU's memory as a GPU's, so importing them fails.

In addition, torch.compile compiles nothing (`torch_compile.py`).
"""

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from lt_train.megatron import tensor_parallel_random, token_dispatcher, torch_compile
from lt_train.megatron.upstream import TORCH, Upstream

CPU = "cpu"
FACTORIES = ("arange", "empty", "full", "ones", "rand", "randn", "tensor", "zeros", "empty_like", "zeros_like", "ones_like")
CUDA_UPSTREAM = Upstream(
    "torch.cuda",
    TORCH,
    versions=("2.11.0", "2.13.0"),
    signatures={
        "current_device": "()",
        "set_device": "(device)",
        "synchronize": "(device=None)",
        "empty_cache": "()",
        "manual_seed": "(seed)",
        "get_rng_state": "(device='cuda')",
        "current_stream": "(device=None)",
        "default_stream": "(device=None)",
        "Stream": "(device=None, priority=0, **kwargs)",
        "stream": "(stream)",
    },
)
TORCH_UPSTREAM = Upstream(
    "torch",
    TORCH,
    versions=("2.11.0", "2.13.0"),
    signatures=dict.fromkeys((*FACTORIES, "Tensor.cuda", "Tensor.type")),
)


def install(accelerator: str) -> None:
    """Redirect calls for `accelerator`, torch's name for GPUs, to the CPU. Call this before megatron is imported."""
    # megatron-core uses these packages if they can be imported. None in sys.modules makes the import fail.
    for package in ("transformer_engine", "apex"):
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]
    for name, function in CUDA_FUNCTIONS.items():
        setattr(torch.cuda, name, function)
    # A TorchFunctionMode would do the same, but run Python for every operation of every step.
    _redirect_factories(accelerator)
    setattr(torch.Tensor, accelerator, _stay)
    setattr(torch.Tensor, "type", _type_under_cuda_name(torch.Tensor.type, accelerator))  # noqa: B010
    torch_compile.leave_uncompiled()
    tensor_parallel_random.use_cpu_generator()
    token_dispatcher.use_host_counts()


class _Stream:
    """Replaces a CUDA stream: a CPU executes its work in order anyway."""

    def __init__(self, device: object = None, priority: int = 0, *unknown: Any, **unknown_named: Any):
        CUDA_UPSTREAM.refuse_unknown("Stream", unknown, unknown_named)

    def wait_stream(self, other: "_Stream") -> None:
        pass


def _current_device(*unknown: Any, **unknown_named: Any) -> torch.device:
    CUDA_UPSTREAM.refuse_unknown("current_device", unknown, unknown_named)
    return torch.device(CPU)


def _set_device(device: object, *unknown: Any, **unknown_named: Any) -> None:
    CUDA_UPSTREAM.refuse_unknown("set_device", unknown, unknown_named)


def _synchronize(device: object = None, *unknown: Any, **unknown_named: Any) -> None:
    CUDA_UPSTREAM.refuse_unknown("synchronize", unknown, unknown_named)


def _empty_cache(*unknown: Any, **unknown_named: Any) -> None:
    CUDA_UPSTREAM.refuse_unknown("empty_cache", unknown, unknown_named)


def _manual_seed(seed: int, *unknown: Any, **unknown_named: Any) -> Any:
    CUDA_UPSTREAM.refuse_unknown("manual_seed", unknown, unknown_named)
    # torch.manual_seed would also queue the seed for CUDA, XPU and MTIA, each with a formatted stack: 5 ms.
    return torch.default_generator.manual_seed(int(seed))


def _get_rng_state(device: object = None, *unknown: Any, **unknown_named: Any) -> torch.Tensor:
    CUDA_UPSTREAM.refuse_unknown("get_rng_state", unknown, unknown_named)
    return torch.get_rng_state()


def _current_stream(device: object = None, *unknown: Any, **unknown_named: Any) -> _Stream:
    CUDA_UPSTREAM.refuse_unknown("current_stream", unknown, unknown_named)
    return _Stream()


def _default_stream(device: object = None, *unknown: Any, **unknown_named: Any) -> _Stream:
    CUDA_UPSTREAM.refuse_unknown("default_stream", unknown, unknown_named)
    return _Stream()


def _stream(stream: object, *unknown: Any, **unknown_named: Any) -> contextlib.AbstractContextManager[None]:
    CUDA_UPSTREAM.refuse_unknown("stream", unknown, unknown_named)
    return contextlib.nullcontext()


CUDA_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "current_device": _current_device,
    "set_device": _set_device,
    "synchronize": _synchronize,
    "empty_cache": _empty_cache,
    "manual_seed": _manual_seed,
    "get_rng_state": _get_rng_state,
    "current_stream": _current_stream,
    "default_stream": _default_stream,
    "Stream": _Stream,
    "stream": _stream,
}


def _redirect_factories(accelerator: str) -> None:
    with torch.device("meta"):
        torch.empty(0)  # At its first use, torch's device context records its functions: the originals, not the wrapped ones.
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name), accelerator))


def _on_cpu(factory: Callable[..., Any], accelerator: str) -> Callable[..., Any]:
    @functools.wraps(factory)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is not None and str(device).startswith(accelerator):
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)
        # torch refuses unknown arguments.
        return factory(*args, **kwargs)

    return redirected


def _stay(
    tensor: torch.Tensor, device: object = None, non_blocking: bool = False, *unknown: Any, **unknown_named: Any
) -> torch.Tensor:
    """Replace `Tensor.cuda`: every device is the CPU."""
    TORCH_UPSTREAM.refuse_unknown("Tensor.cuda", unknown, unknown_named, neutral={"memory_format": torch.preserve_format})
    return tensor


def _type_under_cuda_name(original: Callable[..., Any], accelerator: str) -> Callable[..., Any]:
    def type_of(tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False, *unknown: Any, **unknown_named: Any) -> Any:
        TORCH_UPSTREAM.refuse_unknown("Tensor.type", unknown, unknown_named)
        if dtype is not None:
            return original(tensor, dtype, non_blocking)
        return original(tensor).replace("torch.", f"torch.{accelerator}.", 1)

    return type_of
