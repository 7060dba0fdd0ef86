"""Trains a step of each kind in this process and prints what of megatron-core is not its own any more, by looking at the objects.

Nothing of lt-train's source is read: module attributes and class members are compared with those before training, and living
objects of megatron-core's classes are searched for attributes that hide a method.
"""

import functools
import gc
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from one_process import prepare, train_each

CORE = "megatron.core"
OPTIONS = (
    *("--mock-data", "--model", "tiny", "--num-layers", "1", "--hidden-size", "32", "--ffn-hidden-size", "64"),
    *("--num-attention-heads", "2", "--num-query-groups", "1", "--vocab-size", "128", "--seq-length", "8", "--lr", "1e-2"),
    *("--micro-batch-size", "1", "--global-batch-size", "1", "--train-iters", "1", "--eval-iters", "0", "--bf16"),
    *("--device", "cpu", "--ranks", "1", "--kernels", "triton"),
)
RUNS = {
    "dense": ["", "--z-loss-coeff", "1e-4"],
    "sharded": ["", "--use-distributed-optimizer"],
    "experts": ["", "--num-experts", "4", "--moe-router-topk", "2"],
    "biased experts": ["", "--model", "tiny-gpt-oss"],
    "fp8": ["", "--fp8-format", "hybrid", "--recompute-granularity", "selective", "--recompute-modules", "swiglu"],
}


def modules() -> list[ModuleType]:
    return [module for name, module in list(sys.modules.items()) if name.startswith(CORE) and module is not None]


@functools.cache
def own_globals(module: ModuleType) -> set[str]:
    """What the functions of `module` change themselves."""
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):
        return set()
    return {name.strip() for line in re.findall(r"^\s+global (.+)$", source, re.MULTILINE) for name in line.split(",")}


def members() -> dict[tuple[str, str], Any]:
    """Every attribute of a module or class of megatron-core."""
    found: dict[tuple[str, str], Any] = {}
    for module in modules():
        skipped = own_globals(module)
        for name, value in list(vars(module).items()):
            if name not in skipped and not name.startswith("__"):
                found[module.__name__, name] = value
            if isinstance(value, type) and value.__module__ == module.__name__:
                found |= {
                    (f"{module.__name__}.{name}", member): inner
                    for member, inner in vars(value).items()
                    if not member.startswith("__") and (callable(inner) or isinstance(inner, str))
                }
    return found


def is_ours(value: Any) -> bool:
    origin = getattr(getattr(value, "func", value), "__module__", None)
    return isinstance(origin, str) and origin.startswith("lt_train")


def hidden_methods() -> Iterator[str]:
    """Attributes of living objects that stand before a method of their class in megatron-core or torch, as "Class.name"."""
    for thing in gc.get_objects():
        kind = type(thing)
        if not is_theirs(kind):
            continue
        for name, value in list(getattr(thing, "__dict__", {}).items()):
            if is_ours(value) and callable(getattr(kind, name, None)):
                yield f"{defining(kind, name).__name__}.{name}"


@functools.cache
def is_theirs(kind: type) -> bool:
    return any(str(base.__module__).startswith((CORE, "torch.nn")) for base in kind.__mro__)


def defining(kind: type, name: str) -> type:
    """The first class of megatron-core or torch among the bases of `kind`: ours are made of those."""
    theirs = [base for base in kind.__mro__ if str(base.__module__).startswith((CORE, "torch.nn"))]
    return next((base for base in theirs if hasattr(base, name)), theirs[0])


def qualified(owner: str, name: str) -> str:
    return f"{owner.rpartition('.')[2]}.{name}"


def main(folder: Path) -> None:
    rank = prepare()
    from megatron.core.dist_checkpointing.strategies import filesystem_async  # noqa: F401
    from megatron.core.models.common.embeddings import rope_utils  # noqa: F401
    from megatron.core.optimizer import distrib_optimizer  # noqa: F401
    from megatron.core.tensor_parallel import layers  # noqa: F401
    from megatron.core.transformer.moe import moe_layer  # noqa: F401

    from lt_train.train.trainer import Trainer

    first = members()
    replaced = {qualified(*key) for key, value in first.items() if is_ours(value)}
    run = Trainer.run

    def looking(trainer: Trainer, *arguments: Any) -> Any:
        result = run(trainer, *arguments)
        replaced.update(hidden_methods())
        return result

    Trainer.run = looking  # type: ignore[method-assign]
    for name in RUNS:
        (folder / name).mkdir()
    train_each(rank, folder, RUNS, OPTIONS, lambda name, way: None)
    last = members()
    replaced |= {qualified(*key) for key, value in last.items() if first.get(key, value) is not value or is_ours(value)}
    print(json.dumps(sorted(replaced)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
