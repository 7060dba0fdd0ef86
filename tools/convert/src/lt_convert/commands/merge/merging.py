"""Merge checkpoints: choose them, plan the merge, and write it as a conversion is written: resumable and checked.

Optimizer states are not merged: moments belong to the weights at which they were taken. An average has the iteration of the
newest checkpoint, a merge by a method the iteration of its base, and `lt-convert.json` names all checkpoints with their weights.
"""

import dataclasses
from collections.abc import Sequence

from lt_convert.commands import conversion
from lt_convert.commands.merge import companion_files, method_plan, plan, sources, vocabularies, weights
from lt_convert.commands.merge.merge_request import MergeRequest
from lt_convert.commands.merge.plan import MergePlan, Part
from lt_convert.commands.merge.sources import Chosen
from lt_convert.engine import occupancy, result, source_verification
from lt_convert.engine.receipt import MERGED, ConversionRecord
from lt_convert.engine.result import Result
from lt_convert.formats import FORMATS, HUGGINGFACE, directories, location
from lt_convert.formats.huggingface import adapters
from lt_convert.formats.megatron import megatron_args
from lt_convert.tensors.output_files import views
from lt_convert.tensors.source_files import Files
from lt_shared.console import UsageError, note, warn
from lt_shared.contracts.manifest import Checkpoint, absolute


def merge(request: MergeRequest) -> Checkpoint:
    """Merge, unless the destination is up to date. Returns the checkpoint at the destination. Raises as `planned`."""
    occupancy.check_links(request.destination)
    request = dataclasses.replace(request, destination=directories.normalized(request.destination))
    shares = _shares(request)
    with Files() as files:
        located = _located(request.models, files, bool(request.adapters))
        options = {
            MERGED: [
                {"path": absolute(path), **({} if weight is None else {"weight": weight})}
                for (path, _), weight in zip(located, shares, strict=True)
            ],
            "to": request.to,
            "dtype": request.dtype,
            "layout": dataclasses.astuple(request.legacy_target),
            # Records of averages are as they were before the methods.
            **({"recipe": request.recipe.to_options()} if request.recipe else {}),
            **({"ema": True} if request.ema else {}),
            **({"adapters": [absolute(path) for path in request.adapters]} if request.adapters else {}),
        }
        read = [*located, *((directories.normalized(path), HUGGINGFACE.name) for path in request.adapters)]
        vocabulary = request.recipe and request.recipe.vocabulary
        if vocabulary and vocabulary.model is not None:
            read.append(location.locate(vocabulary.model, files))
        fingerprint = [one for path, name in read for one in result.fingerprint(path, name, request.destination)]
        destination = Result(request.to, request.destination, request.force, options, fingerprint)
        finished = destination.finished()
        if finished:
            return finished
        _check_destination(request.destination, located)
        destination.check_unoccupied()
        if request.verify:
            files.reader = source_verification.open_checksums((path, name, directories.listing(path)) for path, name in located)
        todo = _planned(request, located, shares, files)
        files.reader.planned(views(todo.files), files)
        lost = companion_files.lost_files_of_parts(todo.newest.source, todo.parts, by_token=bool(vocabulary))
        for path in request.adapters:
            lost |= companion_files.lost_files_of_adapter(path, todo.newest.source, files)
    _tell(request, todo)
    tokenizer = todo.newest.source.tokenizer
    checkpoint = destination.write(todo, files.reader, todo.main.iteration, None, tokenizer.files[0].name if tokenizer else None)
    conversion.tell_what_is_missing(todo.newest.source, request.ema)
    companion_files.warn_of_lost_files(lost, todo.newest.source.directory)
    return checkpoint


def planned(request: MergeRequest, files: Files) -> MergePlan:
    """Plan a merge, for --dry-run.

    Raises: NoInput for a missing checkpoint, BadData for a checkpoint that is damaged or holds another model, UsageError for
    impossible weights or an impossible dtype of the result.
    """
    shares = _shares(request)
    located = _located(request.models, files, bool(request.adapters))
    _check_destination(directories.normalized(request.destination), located)
    return _planned(request, located, shares, files)


def _shares(request: MergeRequest) -> Sequence[float | None]:
    """The weights of the `models`. With a recipe, None for a model without a weight, or with several."""
    if request.adapters:
        if len(request.chosen) != 1 or request.chosen[0].weight is not None or request.recipe or request.schedule:
            raise UsageError(
                "--adapter is for one model, without weights and methods", "merge the adapters first, then the models"
            )
        return [None]
    if request.recipe is None:
        return sources.weigh(request.chosen, request.schedule)
    if request.schedule is not None:
        raise UsageError(f"--weights {request.schedule} is for averages", f"drop it: the method is {request.recipe.method.name}")
    weights_of_models = [request.recipe.weight(index) for index in range(len(request.chosen))]
    return [*weights_of_models, *[None] * (len(request.models) - len(request.chosen))]


def _located(chosen: Sequence[Chosen], files: Files, has_adapters: bool = False) -> list[tuple[str, str]]:
    """Find the checkpoints' directories and formats. Raises UsageError for fewer than two checkpoints, or for a repetition."""
    located = [location.locate(one.path, files) for one in chosen]
    directories = [directory for directory, _ in located]
    if len(located) < 2 and not has_adapters:
        raise UsageError(
            f"{directories[0]}: one checkpoint, and a merge takes at least two",
            "name more of them, or the newest of a run with --last 5",
        )
    repeated = next((path for path in directories if directories.count(path) > 1), None)
    if repeated:
        raise UsageError(f"{repeated}: is named twice", "give it the sum of its weights")
    return located


def _check_destination(destination: str, located: Sequence[tuple[str, str]]) -> None:
    for directory, _ in located:
        result.check_destination(destination, directory)


def _planned(
    request: MergeRequest, located: Sequence[tuple[str, str]], shares: Sequence[float | None], files: Files
) -> MergePlan:
    parts = [_part(directory, share, files, request.ema) for (directory, _), share in zip(located, shares, strict=True)]
    if request.schedule not in (None, *weights.MEANS):
        sources.check_order([part.iteration for part in parts], [part.source.directory for part in parts])
    newest = parts[request.main or 0] if request.recipe else plan.newest_of(parts)
    if FORMATS[request.to].warns_of_arguments:
        megatron_args.warn_of_absent(newest.source.model.architecture, newest.source.directory)
    if request.adapters:
        has_conv1d = parts[0].source.model.architecture.family == "gpt"
        opened = [adapters.read(path, files, has_conv1d) for path in request.adapters]
        return method_plan.plan_adapted(parts[0], opened, request.conversion())
    if request.recipe is None:
        return plan.plan(parts, request.conversion())
    layers = newest.source.model.architecture.num_layers
    if request.layers not in (None, layers):
        raise UsageError(
            f"the configuration takes {request.layers} layers, and {newest.source.directory} has {layers}",
            "only merges of every layer are made here: use mergekit for others",
        )
    recipe = dataclasses.replace(
        request.recipe, model_settings=[*request.recipe.model_settings, *[{}] * (len(parts) - len(request.chosen))]
    )
    vocabulary = vocabularies.merged(recipe.vocabulary, parts, request.main, files) if recipe.vocabulary else None
    return method_plan.plan_by(recipe, parts, request.base, newest, request.conversion(), vocabulary)


def _part(directory: str, weight: float | None, files: Files, ema: bool) -> Part:
    source = location.open_source(directory, files)
    if ema:
        source = conversion.with_averages(source)
    conversion.check_aliases(source, files)
    iteration = source.iteration
    if iteration is None:
        # Files of Hugging Face have none; those that were converted from a training run have it beside them.
        converted = ConversionRecord.read(directory)
        iteration = converted.iteration if converted else None
    return Part(source, weight, iteration)


def _tell(request: MergeRequest, todo: MergePlan) -> None:
    if request.recipe or request.adapters:
        return
    weighted = [one for one in request.chosen if one.weight is not None]
    if weighted and not sources.sum_is_one(weighted):
        shown = ", ".join(f"{part.weight or 0.0:.4g}" for part in todo.parts)
        note(f"the weights do not sum to 1: they are divided by their sum: {shown}")
    if any((part.weight or 0.0) < 0 for part in todo.parts):
        warn("a weight is negative: the result may lie outside the range of the checkpoints")
