"""Extract a LoRA adapter in PEFT's format: the difference of a fine-tuned model from its base, of a low rank.

Linear layers get a pair of matrices. Norms and embeddings that differ are stored whole (`modules_to_save`), because a low rank
would change them. Biases that differ have no place in the adapter, and a warning names them.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.commands.conversion import check_aliases
from lt_convert.commands.merge import plan
from lt_convert.engine import occupancy, result, source_verification
from lt_convert.engine.result import Result
from lt_convert.formats import HUGGINGFACE, directories, location
from lt_convert.formats.checkpoint import Source
from lt_convert.formats.huggingface import adapters
from lt_convert.formats.huggingface.safetensors_files import file
from lt_convert.tensors.blocks import TensorReader, parts, row_blocks
from lt_convert.tensors.difference_factors import Difference, FactorPayload
from lt_convert.tensors.output_files import OutputFile, Payload, views
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, zeros
from lt_convert.weights.mapping import PADDING
from lt_convert.weights.tensor_names import abbreviated
from lt_shared.console import BadData, UsageError, warn
from lt_shared.contracts.manifest import Checkpoint, absolute

PEFT = "peft"
_WEIGHT = ".weight"


@dataclasses.dataclass(frozen=True)
class Extraction:
    """The options: the paths of the fine-tuned model and its base, the destination, and the rank of the matrices."""

    tuned: str
    base: str
    destination: str
    rank: int
    force: bool = False
    verify: bool = True


@dataclasses.dataclass(frozen=True)
class ExtractionPlan:
    files: Sequence[OutputFile]

    def to_record(self) -> dict[str, Any]:
        payloads = [(one.name, segment) for one in self.files for segment in one.segments if isinstance(segment, Payload)]
        return {
            "files": [{"name": one.name, "bytes": one.size_bytes} for one in self.files],
            "tensors": [
                {"name": payload.name, "dtype": payload.tensor.dtype, "shape": list(payload.tensor.shape), "file": name}
                for name, payload in payloads
            ],
        }


def extract(request: Extraction) -> Checkpoint:
    """Write the adapter, unless it is up to date. Raises as a merge, and BadData for models whose layers LoRA does not adapt."""
    occupancy.check_links(request.destination)
    request = dataclasses.replace(request, destination=directories.normalized(request.destination))
    with Files() as files:
        located = [location.locate(path, files) for path in (request.tuned, request.base)]
        options = {"tuned": absolute(located[0][0]), "base": absolute(located[1][0]), "to": PEFT, "rank": request.rank}
        fingerprint = [one for path, name in located for one in result.fingerprint(path, name, request.destination)]
        destination = Result(HUGGINGFACE.name, request.destination, request.force, options, fingerprint)
        finished = destination.finished()
        if finished:
            return dataclasses.replace(finished, format=PEFT)
        for directory, _ in located:
            result.check_destination(request.destination, directory)
        destination.check_unoccupied()
        if request.verify:
            files.reader = source_verification.open_checksums((path, name, directories.listing(path)) for path, name in located)
        extraction = planned(request, files)
        files.reader.planned(views(extraction.files), files)
    checkpoint = destination.write(extraction, files.reader, None, None, None)
    return dataclasses.replace(checkpoint, format=PEFT)


def planned(request: Extraction, files: Files) -> ExtractionPlan:
    """Open both models and plan the adapter; norms, biases and embeddings are compared."""
    tuned, base = (location.open_source(path, files) for path in (request.tuned, request.base))
    if tuned.directory == base.directory:
        raise UsageError(f"{base.directory}: is the model and its base", "name the model before fine-tuning with --base")
    for source in (tuned, base):
        check_aliases(source, files)
    plan.check_same_model(base, tuned)
    architecture = base.model.architecture
    if architecture.family != "llama" or architecture.num_experts:
        raise BadData(
            f"{base.directory}: {architecture.family}{' with experts' if architecture.num_experts else ''}: "
            "no adapter is extracted",
            "mergekit-extract-lora of mergekit may read it",
        )
    tensors: dict[str, Tensor] = {}
    differences: dict[str, tuple[Difference, str]] = {}
    saved: list[str] = []
    lost: list[str] = []
    ranks: dict[str, int] = {}
    for name in plan.common_names(base, [tuned]):
        if name.startswith(PADDING):
            continue
        one, other = _of_one_dtype(tuned.tensors[name], base.tensors[name])
        module = name.removesuffix(_WEIGHT)
        if name.endswith(_WEIGHT) and len(one.shape) == 2 and not module.endswith("embed_tokens"):
            rank = min(request.rank, *one.shape)
            difference = Difference(one, other, rank)
            ranks[module] = rank
            for letter, shape in (("A", (rank, one.shape[1])), ("B", (one.shape[0], rank))):
                key = f"{adapters.PREFIX}{module}.lora_{letter}.weight"
                tensors[key], differences[key] = zeros(one.dtype, shape), (difference, letter)
        elif not _are_equal(one, other, files):
            if not name.endswith(_WEIGHT):
                lost.append(name)
                continue
            tensors[f"{adapters.PREFIX}{name}"] = one
            saved.append(module)
    if lost:
        warn(f"{tuned.directory}: differs from its base in what LoRA does not adapt, which is left out: {abbreviated(lost)}")
    weights = file(adapters.WEIGHTS, tensors)
    segments = tuple(
        FactorPayload(segment.name, segment.tensor, *differences[segment.name])
        if isinstance(segment, Payload) and segment.name in differences
        else segment
        for segment in weights.segments
    )
    config = json.dumps(_config(base, ranks, saved), indent=2) + "\n"
    return ExtractionPlan([dataclasses.replace(weights, segments=segments), OutputFile(adapters.CONFIG, (config.encode(),))])


def _config(base: Source, ranks: Mapping[str, int], saved: Sequence[str]) -> dict[str, Any]:
    highest = max(ranks.values())
    lower = {module: rank for module, rank in ranks.items() if rank != highest}
    return {
        "base_model_name_or_path": absolute(base.directory),
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": highest,
        "lora_alpha": highest,
        "rank_pattern": lower,
        "alpha_pattern": lower,
        "target_modules": sorted({module.rpartition(".")[2] for module in ranks}),
        "modules_to_save": sorted({module.rpartition(".")[2] for module in saved}) or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "lora_dropout": 0.0,
        "use_rslora": False,
        "inference_mode": True,
    }


def _of_one_dtype(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    dtype = one.dtype if one.dtype == other.dtype and one.dtype != "float64" else "float32"
    return one.cast(dtype), other.cast(dtype)


def _are_equal(one: Tensor, other: Tensor, files: Files) -> bool:
    reader, other_reader = TensorReader(files), TensorReader(files)
    return all(
        reader.rows(part, *rows).tobytes() == other_reader.rows(its, *rows).tobytes()
        for part, its in parts(one, other)
        for rows in row_blocks(part)
    )
