"""The commands as functions, for notebooks and scripts: they return the printed result, and raise the error of the command.

Options have the names and the defaults of the command line. Environment variables (LT_CONVERT_DTYPE) are not read: a function
depends on its arguments alone.
"""

import json
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from lt_convert.commands import checkpoint_comparison, checksum_verification, conversion, inspection
from lt_convert.commands.merge import merging
from lt_convert.commands.merge.merge_request import Choices, MergeRequest
from lt_convert.commands.merge.sources import Chosen, last_of_run
from lt_convert.formats import FORMATS, HUGGINGFACE, WRITTEN, names_with
from lt_convert.formats.checkpoint import LegacyTarget
from lt_shared.console import UsageError
from lt_shared.contracts.manifest import Checkpoint

Path = str | os.PathLike[str]
Dtype = Literal["float32", "bfloat16", "float16"]
Quantize = Literal["fp8-block"]
TransformerImpl = Literal["transformer_engine", "local"]


def convert(
    src: Path,
    dst: Path,
    to: str = HUGGINGFACE.name,
    *,
    dtype: Dtype | None = None,
    quantize: Quantize | None = None,
    target_tensor_parallel_size: int | None = None,
    target_pipeline_parallel_size: int | None = None,
    target_virtual_pipeline_parallel_size: int | None = None,
    target_transformer_impl: TransformerImpl | None = None,
    ema: bool = False,
    no_optimizer: bool = False,
    no_verify: bool = False,
    force: bool = False,
) -> Checkpoint:
    """Convert the checkpoint `src`, or the newest of the run `src`, into the directory or URL `dst`, as `lt-convert` does.

    Returns the checkpoint at `dst` with the fields of the command's JSON line: `path`, absolute; `format`, as `to`; `iteration`
    and `loss` of the training, None if the source does not record them. Without `dtype` and `quantize` no bit of a weight
    changes. `ema` converts the averages that lt-train --ema-decay keeps, in place of the weights. If `dst` is up to date, it
    stays unchanged. The same call resumes an interrupted call; it may come from any thread.

    Raises: UsageError for impossible options; NoInput without a checkpoint at `src`, BadData for a damaged checkpoint;
    CannotCreate if `dst` holds something else, TryAgain while another process writes it; OSError if the disk fails.
    """
    _check_choice("to", to, WRITTEN)
    _check_choice("dtype", dtype, get_args(Dtype))
    _check_choice("quantize", quantize, get_args(Quantize))
    legacy_target = _legacy_target(
        to,
        target_tensor_parallel_size,
        target_pipeline_parallel_size,
        target_virtual_pipeline_parallel_size,
        target_transformer_impl,
    )
    if quantize and not FORMATS[to].is_quantizable:
        raise UsageError(f"the option quantize is for to='{names_with('is_quantizable')}', not {to!r}", "leave it out")
    [(source, destination)] = conversion.destinations([_place(src)], os.fspath(dst))
    return conversion.convert(
        conversion.Request(
            source, to, destination, dtype, force, legacy_target, not no_optimizer, not no_verify, quantize is not None, ema
        )
    )


def merge(
    sources: Path | Iterable[Path] | Mapping[Path, float],
    dst: Path,
    to: str = HUGGINGFACE.name,
    *,
    last: int | None = None,
    weights: str | None = None,
    method: str | None = None,
    base: Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    tokenizer_source: Path | None = None,
    adapters: Path | Iterable[Path] = (),
    config: Path | None = None,
    seed: int = 0,
    ema: bool = False,
    dtype: Dtype | None = None,
    target_tensor_parallel_size: int | None = None,
    target_pipeline_parallel_size: int | None = None,
    target_virtual_pipeline_parallel_size: int | None = None,
    target_transformer_impl: TransformerImpl | None = None,
    no_verify: bool = False,
    force: bool = False,
) -> Checkpoint:
    """Average or merge checkpoints, in any formats, into the directory or URL `dst`, as `lt-convert merge` does.

    `sources` are checkpoints, or a dict of checkpoints with their weights, which are divided by their sum; with `last`, one run,
    and its newest checkpoints are merged. Without explicit weights the schedule `weights` sets them, the oldest checkpoint first:
    "uniform" (the default), "linear", "minus-sqrt" or "ema=0.9".

    A `method` of mergekit merges models by its name, "slerp" or "ties" for instance, with the model before fine-tuning as `base`
    and with `parameters`: numbers, lists (gradients over the layers) or filters, as in mergekit's files. With `tokenizer_source`
    ("union", "base" or a model) vocabularies may differ. `adapters` are LoRA adapters of PEFT for the only source. `config` is a
    file of mergekit and replaces `sources`, which are empty then. `seed` is for random masks. `ema` merges the averages that
    lt-train --ema-decay keeps.

    Returns the checkpoint at `dst` with the iteration of the newest source, or of the base. Like `convert`, `merge` resumes an
    interrupted call, and changes nothing if `dst` is up to date.

    Raises as `convert`, BadData also for checkpoints of different models, BadConfig for a wrong file of mergekit, and NoInput if
    a run has fewer than `last`.
    """
    _check_choice("to", to, WRITTEN)
    _check_choice("dtype", dtype, get_args(Dtype))
    legacy_target = _legacy_target(
        to,
        target_tensor_parallel_size,
        target_pipeline_parallel_size,
        target_virtual_pipeline_parallel_size,
        target_transformer_impl,
    )
    if config is None or last is not None:
        chosen = _chosen(sources, _checked_size("last", last, 2))
    else:
        chosen = [Chosen(_place(path), None) for path in _paths(sources)]
    choices = Choices(
        chosen,
        method,
        None if base is None else _place(base),
        _plain(parameters or {}),
        [_place(path) for path in _paths(adapters)],
        None if config is None else os.fspath(config),
        _checked_size("seed", seed, 0) or 0,
        None if tokenizer_source is None else os.fspath(tokenizer_source),
    )
    request = MergeRequest([], to, os.fspath(dst), weights, dtype, force, legacy_target, not no_verify, ema=ema)
    return merging.merge(choices.applied(request))


def _paths(paths: Path | Iterable[Path]) -> list[Path]:
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _plain(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return `parameters` with plain numbers and lists, as YAML has them: they are recorded beside the result."""
    try:
        return dict(json.loads(json.dumps(dict(parameters), default=float)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"the parameters are not numbers, lists and dicts: {error}", "as {'t': [0, 0.5, 1]}") from None


def _chosen(sources: Path | Iterable[Path] | Mapping[Path, float], last: int | None) -> list[Chosen]:
    if isinstance(sources, Mapping):
        checkpoints = [Chosen(_place(path), float(weight)) for path, weight in sources.items()]
    else:
        checkpoints = [Chosen(_place(path), None) for path in _paths(sources)]
    if not checkpoints:
        raise UsageError("no checkpoint to merge", "name at least two")
    if last is None:
        return checkpoints
    if len(checkpoints) > 1 or checkpoints[0].weight is not None:
        raise UsageError(f"last={last} is for one run, without a weight", "name the checkpoints themselves")
    return last_of_run(checkpoints[0].path, last)


def inspect(path: Path) -> dict[str, Any]:
    """Describe the checkpoint at `path`, or the run's newest checkpoint: the object that `lt-convert inspect --json` prints.

    Among its keys are `format`, `architecture`, `parameters`, `dtypes` (parameters by dtype), `bytes`, `iteration` and `loss`.
    Raises NoInput and BadData as `convert`.
    """
    return inspection.inspect(_place(path))


def verify(path: Path, other: Path | None = None, *, logits: bool = False) -> dict[str, Any]:
    """Check a converted checkpoint against its checksums, or compare two checkpoints of any formats.

    Returns the object that `lt-convert verify --json` prints. Without `other`, `problems` lists missing and changed files. With
    `other`, `same` says whether both hold one model, `configuration` and `tensors` list the differences; `logits` compares the
    logits, too. Differences are no error.

    Raises: NoInput without checksums or without a checkpoint, BadData for a damaged checkpoint; UsageError for `logits` without
    `other`.
    """
    if other is not None:
        return checkpoint_comparison.compare(_place(path), _place(other), logits)
    if logits:
        raise UsageError("logits compares two checkpoints", "name the other one too")
    return checksum_verification.verify(_place(path))


def _place(path: Path) -> str:
    """The path as the commands take it; `-` and `@FILE` are manifests to those, and names of files here."""
    name = os.fspath(path)
    return os.path.abspath(name) if name.startswith(("-", "@")) else name


def _legacy_target(
    to: str, tensor: int | None, pipeline: int | None, virtual: int | None, impl: TransformerImpl | None
) -> LegacyTarget:
    _check_choice("target_transformer_impl", impl, get_args(TransformerImpl))
    tensor = _checked_size("target_tensor_parallel_size", tensor, 1)
    pipeline = _checked_size("target_pipeline_parallel_size", pipeline, 1)
    virtual = _checked_size("target_virtual_pipeline_parallel_size", virtual, 2)
    if not FORMATS[to].has_target_options and (tensor or pipeline or virtual or impl):
        raise UsageError(f"the options target_* are for to='{names_with('has_target_options')}', not {to!r}", "leave them out")
    return LegacyTarget(tensor or 1, pipeline or 1, virtual, impl == "local")


def _check_choice(name: str, value: str | None, choices: Sequence[str]) -> None:
    if value is not None and value not in choices:
        raise UsageError(f"{name} {value!r} is not one of {', '.join(choices)}")


def _checked_size(name: str, value: int | None, least: int) -> int | None:
    if value is None:
        return None
    size = operator.index(value)
    if size < least:
        raise UsageError(f"{name} {size} is less than {least}")
    return size
