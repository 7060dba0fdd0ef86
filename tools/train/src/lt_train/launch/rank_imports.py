"""The imports of a rank before its first step, in less than half of their usual time.

Importing torch, megatron-core, flash-attn-4 and quack took 6.2 s of a processor. Now 2.3 are left before the model is built, and
1.4 go on in a thread (Python 3.12, torch 2.13, megatron-core 0.19.2, 2 busy cores of a Xeon, 2026-11-27). What is left out:

- megatron-core and quack wrap small functions in torch.compile, which imports torch's compiler, 1.4 s. Few runs call one, and
  functions are compiled when they are called (`lt_train.megatron.torch_compile`). torch's optimizers import 0.4 s of it, to say
  that it shall not compile them (`lt_train.megatron.torch_optimizer`).
- megatron-core imports flash-attn-4, and with it cutlass-dsl, for inference alone. `lt_train.train.kernel_trials` does when they
  are needed.
- megatron-core imports wandb and tensorboard wherever they are, half a second.
- Python looks for circles among all that imports make, again and again, and finds none, 1.2 s of 6.5.
"""

import contextlib
import gc
import sys
from collections.abc import Iterator


def leave_out(*packages: str) -> None:
    """Let unused packages count as absent."""
    for package in packages:
        sys.modules.setdefault(package, None)  # type: ignore[arg-type]


@contextlib.contextmanager
def absent(*packages: str) -> Iterator[None]:
    """Within the context, packages that are not imported yet count as absent."""
    hidden = [package for package in packages if package not in sys.modules]
    leave_out(*hidden)
    try:
        yield
    finally:
        for package in hidden:
            del sys.modules[package]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Within the context, run no garbage collection, and exempt all objects from it afterwards, because modules stay."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
