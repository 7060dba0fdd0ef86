"""Call `lt-train DATA...` from notebooks and scripts. The function has the options and checks of the command."""

import dataclasses
import os
from collections.abc import Mapping, Sequence

from lt_shared.console import UsageError, keyword_options, tool_process
from lt_shared.console.keyword_options import Value
from lt_shared.contracts import manifest
from lt_train.config.options import schema

Dataset = str | os.PathLike[str] | manifest.Dataset


@dataclasses.dataclass(frozen=True)
class PretrainedRun:
    """What a run has saved: `checkpoints` in the order of their iterations; empty without `save`."""

    checkpoints: tuple[manifest.Checkpoint, ...]


def pretrain(
    data: Dataset | Sequence[Dataset] | Mapping[str, float] = (),
    *,
    model: str | os.PathLike[str] | None = None,
    save: str | os.PathLike[str] | None = None,
    **options: Value,
) -> PretrainedRun:
    """Pretrain a model, and return the checkpoints, which are durable on disk.

    `data` are prefixes of datasets, the datasets that `lt_preprocess.tokenize` returns, or a dict of prefixes and weights.
    `options` are the command's other options, with underscores: `train_iters=1000`, `bf16=True`, `ranks=2`. None and False omit
    an option. Environment variables such as LT_TRAIN_SEQ_LENGTH are ignored. The log goes to standard error.

    The same call continues an interrupted run in `save`. Raises the errors of the command: UsageError, NoInput, BadData,
    BadConfig, CannotCreate, IoFailure, Unavailable, and TryAgain if the run ended before its last step, as with `exit_interval`.
    """
    words = keyword_options.words(
        schema(), {"model": model, "save": save, **options}, "lt-train", excluded=("plain", "dry_run", "follow", "config")
    )
    lines = tool_process.run("lt-train", [*words, "--", *_operands(data)])
    entries = manifest.parse(lines, "lt-train") if len(lines) > 1 else []
    return PretrainedRun(tuple(entry for entry in entries if isinstance(entry, manifest.Checkpoint)))


def _operands(data: Dataset | Sequence[Dataset] | Mapping[str, float]) -> list[str]:
    """Return prefixes, or weights and prefixes if a weight is not 1."""
    if isinstance(data, Mapping):
        weights = {os.fspath(prefix): weight for prefix, weight in data.items()}
    else:
        datasets = [data] if isinstance(data, str | os.PathLike | manifest.Dataset) else data
        pairs = [(one.prefix, one.weight) if isinstance(one, manifest.Dataset) else (os.fspath(one), 1.0) for one in datasets]
        weights = dict(pairs)
        if len(weights) < len(pairs):
            raise UsageError("a dataset is there twice", "give it a weight: {prefix: 2.0}")
    if all(weight == 1 for weight in weights.values()):
        return list(weights)
    return [word for prefix, weight in weights.items() for word in (str(weight), prefix)]
