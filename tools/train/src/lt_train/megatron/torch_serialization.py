"""`torch.load`, while a checkpoint is loaded: torch and megatron-core call it for objects and for `common.pt`.

`torch.load` unpickles any file, and calls any function that a pickle names. `lt_train.checkpoint.object_reader` replaces it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from lt_train.megatron.upstream import TORCH, Upstream, replace_within

UPSTREAM = Upstream(
    "torch",
    TORCH,
    versions=("2.11.0", "2.13.0"),
    signatures={"load": "(f, map_location=None, pickle_module=None, *, weights_only=None, mmap=None, **pickle_load_args)"},
)
# Our reader always returns tensors in CPU memory, so these arguments have no effect.
NEUTRAL = {"map_location": "cpu", "mmap": False}


@contextlib.contextmanager
def load_by(load: Callable[[Any, bool | None], Any]) -> Iterator[None]:
    """Within, `torch.load` calls `load` with a path or an open file and with `weights_only`."""

    def load_file(
        f: Any,
        map_location: Any = None,
        pickle_module: Any = None,
        *unknown: Any,
        weights_only: bool | None = None,
        **unknown_named: Any,
    ) -> Any:
        named = {"map_location": map_location, "pickle_module": pickle_module} | unknown_named
        UPSTREAM.refuse_unknown("load", unknown, named, neutral=NEUTRAL)
        return load(f, weights_only)

    with replace_within(torch, "load", load_file):
        yield
