"""The plan of a merge by a method: each canonical tensor is merged, and the format converts the merged tensors.

All but the tensors comes from the base model, or from the first model of a method without one, as with mergekit: configuration,
tokenizer, generation settings. The padding rows of the vocabulary, which no token uses, become zeros.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

from lt_convert.commands.conversion import Plan, Request
from lt_convert.commands.merge import plan, vocabularies
from lt_convert.commands.merge.methods import TensorCase
from lt_convert.commands.merge.plan import MergePlan, Part
from lt_convert.commands.merge.recipe import Recipe
from lt_convert.commands.merge.settings import resolve
from lt_convert.commands.merge.vocabularies import MergedVocabulary
from lt_convert.formats import FORMATS
from lt_convert.formats.checkpoint import Target
from lt_convert.formats.huggingface.adapters import Adapter
from lt_convert.tensors.adapted import AdaptedTensor
from lt_convert.tensors.merge_rules import Linear, Rule
from lt_convert.tensors.merged import MergedPayload, MergedTensor
from lt_convert.tensors.output_files import OutputFile, Payload
from lt_convert.tensors.vocabulary_rows import AlignedTensor
from lt_convert.weights import families
from lt_convert.weights.mapping import PADDING, Model, is_balancing_bias
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT
from lt_shared.console import UsageError, note

_LAYER = re.compile(r"\.(\d+)\.")


def plan_by(
    recipe: Recipe,
    parts: Sequence[Part],
    base: int | None,
    first: Part,
    request: Request,
    vocabulary: MergedVocabulary | None = None,
) -> MergePlan:
    """Check that the parts fit together, and plan the merge. `base` is the index of the base model in `parts`.

    Everything but the tensors comes from the part `first`.

    With a `vocabulary`, the parts' embeddings and output layers are merged by token.

    Raises BadData for parts of other architectures, tokenizers or tensors, UsageError for a number of models or a parameter that
    the method does not take, and for dtypes that differ if none was chosen.
    """
    models = [index for index in range(len(parts)) if index != base]
    if recipe.method.models is not None and len(models) != recipe.method.models:
        raise UsageError(
            f"{recipe.method.name} merges {recipe.method.models + 1} models, its base among them: {len(parts)} are named"
        )
    for part in parts:
        plan.check_same_model(first.source, part.source, vocabulary is not None)
    by_token = vocabularies.names(first.source.model.architecture) if vocabulary else ()
    names = [
        name
        for name in plan.common_names(first.source, [part.source for part in parts], by_token)
        if not name.startswith(PADDING)
    ]
    order = models if base is None else [base, *models]
    layers = first.source.model.architecture.num_layers
    merged: dict[str, MergedTensor] = {}
    for name in names:
        dtype = "float32" if is_balancing_bias(name) else plan.dtype_of(name, parts, first, recipe.dtype)
        sources = tuple(parts[index].source.tensors[name].cast(dtype) for index in order)
        result_dtype = dtype if is_balancing_bias(name) else request.dtype or dtype
        if vocabulary and name in by_token:
            size = vocabulary.size * sources[0].shape[1]
            rule = _rule(recipe, name, size, models, layers)
            rows = tuple(vocabulary.rows[index] for index in order)
            tensor: MergedTensor = AlignedTensor(
                name, rule, sources, dtype, result_dtype, rows=rows, order=tuple(order), padding=vocabulary.padding
            )
        else:
            rule = _rule(recipe, name, math.prod(sources[0].shape), models, layers)
            tensor = MergedTensor(name, rule, sources, dtype, result_dtype)
        merged[tensor.file] = tensor
    return _planned(recipe.method.name, first, parts, merged, request, vocabulary)


def plan_adapted(part: Part, adapters: Sequence[Adapter], request: Request) -> MergePlan:
    """Plan the model of `part` with `adapters` merged into its weights. Raises BadData for an adapter that does not fit."""
    part = _untied(part, adapters)
    tensors = {name: tensor for name, tensor in part.source.tensors.items() if not name.startswith(PADDING)}
    for adapter in adapters:
        adapter.check(tensors, part.source.directory)
        tensors |= adapter.replaced
    merged: dict[str, MergedTensor] = {}
    for name, tensor in tensors.items():
        dtype = "float32" if is_balancing_bias(name) else request.dtype or part.source.tensors[name].dtype
        dtype = "float32" if dtype == "float64" else dtype
        updates = tuple(adapter.updates[name] for adapter in adapters if name in adapter.updates)
        adapted = AdaptedTensor(name, Linear(()), (tensor.cast(dtype),), dtype, dtype, updates=updates)
        merged[adapted.file] = adapted
    return _planned("sum", part, [part], merged, request)


def _untied(part: Part, adapters: Sequence[Adapter]) -> Part:
    """Give the model an output layer of its own if an adapter has trained a tied embedding or output layer whole.

    PEFT trains a copy of the one module: the other keeps the weights of the base.
    """
    source, architecture = part.source, part.source.model.architecture
    embedding = families.family_of(architecture).embedding
    trained = {name for adapter in adapters for name in adapter.trained}
    if not architecture.tie_embeddings or not trained & {embedding, OUTPUT_WEIGHT}:
        return part
    note(f"{source.directory}: the result has an output layer apart from its embedding: the adapter has trained one of them")
    model = Model(dataclasses.replace(architecture, tie_embeddings=False), source.model.padded_vocab_size)
    tensors = {**source.tensors, OUTPUT_WEIGHT: source.tensors[embedding].named(OUTPUT_WEIGHT)}
    return dataclasses.replace(part, source=dataclasses.replace(source, model=model, tensors=tensors, aliases=()))


def _planned(
    method: str,
    first: Part,
    parts: Sequence[Part],
    merged: Mapping[str, MergedTensor],
    request: Request,
    vocabulary: MergedVocabulary | None = None,
) -> MergePlan:
    """The plan of `merged` tensors in the target format, with everything else from the part `first` or the `vocabulary`."""
    source = dataclasses.replace(plan.common(first.source, parts), tensors={one.name: one.tensor() for one in merged.values()})
    source = vocabulary.applied(source) if vocabulary else source
    target_format = FORMATS[request.to]
    files = target_format.outputs(Target(source, source.tensors, request.destination, request.legacy_target))
    family = families.family_of(source.model.architecture)
    operations = family.operations(source.table, target_format.table, source.model)
    outputs = tuple(_with_merged(file, merged) for file in files)
    return MergePlan(Plan(source, request, tuple(files), operations), tuple(parts), outputs, method, first)


def _rule(recipe: Recipe, name: str, size: int, models: Sequence[int], layers: int) -> Rule:
    match = _LAYER.search(name)
    # As in mergekit: a model of one layer has the end of a gradient, tensors outside the layers the beginning.
    depth = 0.0 if match is None else min(1.0, int(match[1]) / (layers - 1)) if layers > 1 else 1.0
    method = recipe.method
    shared = {
        parameter: resolve(parameter, default, [recipe.settings], name, depth) for parameter, default in method.shared.items()
    }
    of_models = [
        {
            parameter: resolve(parameter, default, [recipe.model_settings[model], recipe.settings], name, depth)
            for parameter, default in method.of_model.items()
        }
        for model in models
    ]
    return method.rule(TensorCase(name, size, recipe.seed, shared, of_models))


def _with_merged(file: OutputFile, merged: Mapping[str, MergedTensor]) -> OutputFile:
    segments = tuple(
        MergedPayload(segment.name, segment.tensor, merged) if isinstance(segment, Payload) else segment
        for segment in file.segments
    )
    return dataclasses.replace(file, segments=segments)
