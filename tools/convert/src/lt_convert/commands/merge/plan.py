"""The plan of a merge: every source is planned as if it were converted alone, then tensors with equal names are averaged.

So any source formats merge to any format, and the formats know nothing about merging. Everything except tensors comes from the
newest source: the tokenizer, the ids of special tokens, the order of the layers in files. Planning takes as long as planning all
conversions.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lt_convert.commands import checkpoint_comparison
from lt_convert.commands.conversion import Plan, Request
from lt_convert.formats import FORMATS
from lt_convert.formats.checkpoint import Source, Target
from lt_convert.tensors.averages import Average
from lt_convert.tensors.output_files import OutputFile, Payload
from lt_convert.tensors.tensor import CASTABLE
from lt_convert.weights import families
from lt_convert.weights.mapping import PADDING
from lt_shared.console import BadData, UsageError
from lt_shared.contracts.manifest import absolute


@dataclasses.dataclass(frozen=True)
class Part:
    """A source of a merge; `iteration` is None if the source does not record it.

    The `weight`s of an average sum to 1. A merge by a method has None for a model without a weight or with several.
    """

    source: Source
    weight: float | None
    iteration: int | None

    def to_record(self) -> dict[str, Any]:
        return {
            "path": absolute(self.source.directory),
            "format": self.source.format,
            "iteration": self.iteration,
            **({} if self.weight is None else {"weight": self.weight}),
        }


@dataclasses.dataclass(frozen=True)
class MergePlan:
    """`newest` is the plan of one part alone, and `files` are its files with merged tensors in place of its tensors.

    That part is `main`: the newest of an average, the base of a merge by a `method`.
    """

    newest: Plan
    parts: tuple[Part, ...]
    files: tuple[OutputFile, ...]
    method: str
    main: Part

    def to_record(self) -> dict[str, Any]:
        record = self.newest.to_record()
        tensors = [tensor | {"operation": self._operation(tensor["operation"])} for tensor in record["tensors"]]
        return record | {"sources": [part.to_record() for part in self.parts], "tensors": tensors}

    def _operation(self, operation: str) -> str:
        return f"{self.method} of {len(self.parts)}" + ("" if operation == "copy" else f", {operation}")


def newest_of(parts: Sequence[Part]) -> Part:
    """Return the part with the highest iteration. The last part wins a tie, and if any iteration is unknown."""
    iterations = [part.iteration for part in parts]
    if any(iteration is None for iteration in iterations):
        return parts[-1]
    return max(reversed(parts), key=lambda part: part.iteration or 0)


def plan(parts: Sequence[Part], request: Request) -> MergePlan:
    """Check that the parts fit together, and plan the average.

    Raises BadData for parts of other architectures, tokenizers or tensors, UsageError where dtypes differ and none was chosen.
    """
    newest = newest_of(parts)
    for part in parts:
        check_same_model(newest.source, part.source)
    names = common_names(newest.source, [part.source for part in parts])
    dtypes = {name: dtype_of(name, parts, newest, request.dtype) for name in names}
    result = common(newest.source, parts)
    target_format = FORMATS[request.to]

    def outputs(part: Part) -> list[OutputFile]:
        tensors = {name: part.source.tensors[name].cast(dtypes[name]) for name in names}
        # A tokenizer takes seconds to write, and does not depend on the part.
        tokenizer = result.tokenizer if part is newest else None
        source = dataclasses.replace(result, directory=part.source.directory, tensors=tensors, tokenizer=tokenizer)
        return target_format.outputs(Target(source, tensors, request.destination, request.legacy_target))

    outputs_by_part = [(part, outputs(part)) for part in parts]
    files = next(files for part, files in outputs_by_part if part is newest)
    family = families.family_of(result.model.architecture)
    operations = family.operations(result.table, target_format.table, result.model)
    averaged = tuple(_averaged(file, outputs_by_part) for file in files)
    return MergePlan(Plan(result, request, tuple(files), operations), tuple(parts), averaged, "average", newest)


# Fields that may differ if models are merged by token.
OF_VOCABULARY = ("vocab_size", "tokenizer")


def check_same_model(one: Source, other: Source, by_token: bool = False) -> None:
    """Raise BadData for another model. `by_token` says that vocabularies may differ."""
    for difference in checkpoint_comparison.configuration_differences(one, other):
        field = difference["field"]
        if by_token and field in OF_VOCABULARY:
            continue
        raise BadData(
            f"{other.directory}: {field} is {difference['b']}, in {one.directory} {difference['a']}",
            "merge them by token, as --method linear --tokenizer-source union"
            if field in OF_VOCABULARY
            else "only checkpoints of one model can be merged",
        )


def common_names(newest: Source, sources: Sequence[Source], by_token: Sequence[str] = ()) -> list[str]:
    """The canonical tensors that are averaged, in the order of the newest source.

    The padding rows of the vocabulary, which no token uses, are left out where they differ in number. Tensors in `by_token` may
    differ in their rows.
    """
    shapes = [{name: tensor.shape for name, tensor in source.tensors.items()} for source in (newest, *sources)]
    has_same_padding = all(_padding(shape_by_name) == _padding(shapes[0]) for shape_by_name in shapes)
    names = [name for name in newest.tensors if has_same_padding or not name.startswith(PADDING)]
    for source in sources:
        for name in names:
            tensor = source.tensors.get(name)
            first = 1 if name in by_token else 0
            if tensor is None or tensor.shape[first:] != newest.tensors[name].shape[first:]:
                differing = "missing" if tensor is None else f"is {list(tensor.shape)}"
                raise BadData(
                    f"{source.directory}: {name}: {differing}, in {newest.directory} {list(newest.tensors[name].shape)}"
                )
    return names


def _padding(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if name.startswith(PADDING)}


def dtype_of(name: str, parts: Sequence[Part], newest: Part, chosen: str | None) -> str:
    """Return the dtype of a tensor in the result: the chosen dtype, or the dtype that all parts share."""
    for part in parts:
        dtype = part.source.tensors[name].dtype
        if dtype not in CASTABLE:
            raise BadData(f"{part.source.directory}: {name} is stored as {dtype}: only floating-point numbers are averaged")
        if chosen is None and dtype != newest.source.tensors[name].dtype:
            raise UsageError(
                f"{part.source.directory}: {name} is {dtype}, in {newest.source.directory} {newest.source.tensors[name].dtype}",
                "choose the dtype of the result, as --dtype bfloat16",
            )
    # fp64 has no place in the formats that are written, and the average is computed in fp32.
    newest_dtype = newest.source.tensors[name].dtype
    return chosen or ("float32" if newest_dtype == "float64" else newest_dtype)


def common(newest: Source, parts: Sequence[Part]) -> Source:
    """Return the parts of the result apart from the averages, without a loss: the newest checkpoint's loss is not the average's.

    All tokenizers are the same; a checkpoint that was copied without its run may have none.
    """
    tokenizer = next((one.tokenizer for one in (newest, *(part.source for part in parts)) if one.tokenizer), None)
    return dataclasses.replace(newest, optimizer=None, loss=None, aliases=(), tokenizer=tokenizer)


def _averaged(file: OutputFile, outputs_by_part: Sequence[tuple[Part, Sequence[OutputFile]]]) -> OutputFile:
    """Return the newest part's file with its tensors averaged over all parts' files with this name."""
    payloads_of_file = _payloads([file])
    if not payloads_of_file:
        return file
    payloads_by_part = [
        (part.weight or 0.0, part, _payloads(other for other in files if other.name == file.name))
        for part, files in outputs_by_part
    ]
    for _, part, payloads in payloads_by_part:
        if [(one.name, one.tensor.shape) for one in payloads] != [(one.name, one.tensor.shape) for one in payloads_of_file]:
            raise BadData(
                f"{part.source.directory}: stores tensors that share values in another way than the newest checkpoint",
                "convert both to hf first, and merge the results",
            )
    averages = iter(
        Average(
            one.name,
            one.tensor,
            tuple((weight, tensor) for weight, _, payloads in payloads_by_part for tensor in payloads[index].read),
        )
        for index, one in enumerate(payloads_of_file)
    )
    segments = (next(averages) if isinstance(segment, Payload) else segment for segment in file.segments)
    return dataclasses.replace(file, segments=tuple(segments))


def _payloads(files: Iterable[OutputFile]) -> list[Payload]:
    return [segment for file in files for segment in file.segments if isinstance(segment, Payload)]
