"""Extract a LoRA adapter in PEFT's format: the difference of a fine-tuned model from its base, of a low rank.

Linear layers get a pair of matrices, and GPT-2's Conv1D the pair of its transposed weight (`fan_in_fan_out`). Norms and
embeddings that differ are stored whole (`modules_to_save`), because a low rank would change them, and biases of linear layers as
PEFT stores trained ones (`bias`). Other tensors have no place in the adapter, and a warning names them. Experts have a pair for
each matrix under the names in published files: PEFT joins them for transformers 5 if all their ranks are equal.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

from lt_convert.commands.conversion import check_aliases
from lt_convert.commands.merge import companion_files, plan
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
from lt_convert.weights import families
from lt_convert.weights.families import gpt2
from lt_convert.weights.mapping import PADDING
from lt_convert.weights.tensor_names import abbreviated
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT
from lt_shared.console import BadData, UsageError, warn
from lt_shared.contracts.manifest import Checkpoint, absolute
from lt_shared.models.architecture import Architecture

PEFT = "peft"
_WEIGHT = ".weight"
# Parts of the names of experts and routers.
_EXPERTS = (".experts.", ".mlp.gate.", ".block_sparse_moe.gate.")


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
    is_conv1d = architecture.family == "gpt"
    if architecture.num_experts and not _is_joined_by_peft(architecture):
        raise BadData(
            f"{base.directory}: {architecture.model_type or architecture.family} with experts: no adapter is extracted",
            "PEFT joins the experts of Mixtral and Qwen3-MoE alone: mergekit-extract-lora of mergekit may read it",
        )
    embeddings = (families.family_of(architecture).embedding, gpt2.POSITIONS)
    tensors: dict[str, Tensor] = {}
    differences: dict[str, tuple[Difference, str]] = {}
    saved: list[str] = []
    biases: list[str] = []
    lost: list[str] = []
    ranks: dict[str, int] = {}
    for name in plan.common_names(base, [tuned]):
        if name.startswith(PADDING):
            continue
        one, other = _of_one_dtype(tuned.tensors[name], base.tensors[name])
        module = name.removesuffix(_WEIGHT)
        is_matrix = name.endswith(_WEIGHT) and len(one.shape) == 2
        if is_matrix and name not in embeddings:
            if is_conv1d and name != OUTPUT_WEIGHT:
                one, other = one.transposed(), other.transposed()
            is_expert = any(part in name for part in _EXPERTS)
            rank = request.rank if is_expert else min(request.rank, *one.shape)
            difference = Difference(one, other, rank)
            ranks[module] = rank
            for letter, shape in (("A", (rank, one.shape[1])), ("B", (one.shape[0], rank))):
                key = f"{adapters.PREFIX}{module}.lora_{letter}.weight"
                tensors[key], differences[key] = zeros(one.dtype, shape), (difference, letter)
        elif not _are_equal(one, other, files):
            owner, _, kind = name.rpartition(".")
            if kind == "bias" and owner in ranks:
                biases.append(name)
                tensors[f"{adapters.PREFIX}{owner}{adapters.BASE_LAYER}bias"] = one
            elif kind in ("weight", "bias"):
                saved.append(owner)
            else:
                lost.append(name)
    for owner in dict.fromkeys(saved):
        # A norm is stored with its bias, or not at all.
        for kind in ("weight", "bias"):
            if f"{owner}.{kind}" in tuned.tensors:
                tensors[f"{adapters.PREFIX}{owner}.{kind}"] = tuned.tensors[f"{owner}.{kind}"]
    if lost:
        warn(f"{tuned.directory}: differs from its base in what LoRA does not adapt, which is left out: {abbreviated(lost)}")
    if architecture.tie_embeddings and embeddings[0].removesuffix(_WEIGHT) in saved:
        warn(f"{tuned.directory}: its embedding and output layer are one and differ from its base: PEFT changes the embedding "
             "alone, and lt-convert merge --adapter both")  # fmt: skip
    lost = companion_files.differing_names(companion_files.carried_files(tuned), companion_files.carried_files(base))
    companion_files.warn_of_lost_files({tuned.directory: lost}, base.directory)
    weights = file(adapters.WEIGHTS, tensors)
    segments = tuple(
        FactorPayload(segment.name, segment.tensor, *differences[segment.name])
        if isinstance(segment, Payload) and segment.name in differences
        else segment
        for segment in weights.segments
    )
    config = json.dumps(_config(base, ranks, saved, bool(biases)), indent=2) + "\n"
    return ExtractionPlan([dataclasses.replace(weights, segments=segments), OutputFile(adapters.CONFIG, (config.encode(),))])


def _config(base: Source, ranks: Mapping[str, int], saved: Sequence[str], has_biases: bool) -> dict[str, Any]:
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
        "bias": "lora_only" if has_biases else "none",
        "fan_in_fan_out": base.model.architecture.family == "gpt",
        "lora_dropout": 0.0,
        "use_rslora": False,
        "inference_mode": True,
    }


def _is_joined_by_peft(architecture: Architecture) -> bool:
    """Whether PEFT 0.21 reads adapters of single experts: Mixtral's and Qwen3-MoE's, which have experts in every layer."""
    has_other_layers = architecture.moe_first_dense_layers or architecture.moe_shared_expert_intermediate_size
    return not (has_other_layers or architecture.moe_router_enable_expert_bias or architecture.attention_sinks)


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
