"""Import a rank's packages before its first step in less than half of the usual time.

Importing torch, megatron-core, flash-attn-4 and quack took 6.2 s of processor time. Now 2.3 s remain before the model is built,
and 1.4 s run in a thread (Python 3.12, torch 2.13, megatron-core 0.19.2, 2 busy cores of a Xeon, 2026-11-27). Left out are:

- torch's compiler, 1.4 s. megatron-core and quack wrap small functions in torch.compile, which imports it, but few runs call one.
  `lt_train.megatron.torch_compile` compiles functions when they are called. torch's optimizers import a part of it, 0.4 s, to be
  excluded from compilation (`lt_train.megatron.torch_optimizer`).
- flash-attn-4 and cutlass-dsl. megatron-core imports them for inference alone; `lt_train.train.kernel_trials` imports them if the
  run needs them.
- wandb and tensorboard, half a second, which megatron-core imports if they are installed.
- Python's garbage collection, 1.2 s of 6.5. It searches the imported objects for cycles again and again, and finds none.
"""

import contextlib
import gc
import sys
from collections.abc import Iterator


def leave_out(*packages: str) -> None:
    """Make imports of unused `packages` fail as if they were not installed."""
    for package in packages:
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]


@contextlib.contextmanager
def hide(*packages: str) -> Iterator[None]:
    """Within the context, imports of `packages` that are not imported yet fail as if they were not installed."""
    hidden = [package for package in packages if package not in sys.modules]
    leave_out(*hidden)
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """Within the context, run no garbage collection. Afterwards exempt all objects from it, because modules are never freed."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
