"""Megatron's legacy format: one `mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt` for each tensor, pipeline and expert parallel rank.

Each file is one `torch.save` of the arguments, the rank's shard of the model and its training state. Layers are numbered from 0
in each pipeline stage, or in each model chunk (`model0`, `model1` ...) with virtual pipeline parallelism: the ranks' first chunks
have the first layers, then the second chunks follow. Tensors are named as in local or in TransformerEngine layers, and keep their
names when a legacy checkpoint is resharded.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lt_convert.containers import torch_archive
from lt_convert.formats import MEGATRON_LEGACY, beside_model, range_checksums
from lt_convert.formats.checkpoint import LegacyTarget, Source, Target
from lt_convert.formats.directories import listing
from lt_convert.formats.megatron import megatron_args
from lt_convert.tensors.output_files import OutputFile, Payload
from lt_convert.tensors.source_files import INCOMPLETE, Files
from lt_convert.tensors.tensor import Chunk, Tensor, concatenate, zeros
from lt_convert.tokenizers import discovery
from lt_convert.weights import families, tensor_parallel
from lt_convert.weights.mapping import MEGATRON_LOCAL, MEGATRON_TE, PADDING, Model
from lt_shared import pickles
from lt_shared.console import BadData, UsageError, warn
from lt_shared.contracts import checkpoint_layout

TABLE = MEGATRON_TE
FILE = "model_optim_rng.pt"
EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
# Keys of a file with training state. All other keys are the model, or are written by `megatron_args.common_state`.
STATE = ("optimizer", "opt_param_scheduler", "rng_state", "rerun_state_machine")
OLDEST_VERSION = 2.0
# Megatron pads the vocabulary to a multiple of this times the tensor parallel size.
VOCAB_MULTIPLE = 128

_RANK = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")
_MODEL_CHUNK = re.compile(r"model(\d*)")
_LAYER = re.compile(r"(decoder\.layers\.)(\d+)(\..*)")
_LOCAL_EXPERT = re.compile(r"(.*\.experts\.(?:local_experts\.|linear_fc\d\.(?:weight|bias)))(\d+)(.*)")
# TransformerEngine stores norms with the linear layer that follows, local layers never do.
_ENGINE_NAME = re.compile(r".*\.layer_norm_weight")

RankCoordinates = tuple[int, int, int]
"""The tensor, pipeline and expert parallel rank."""


@dataclasses.dataclass(frozen=True)
class RankFile:
    """One rank's file, opened: its content without the tensors' values, and a function that locates those."""

    path: str
    content: Mapping[str, Any]
    locate: Callable[[Any], torch_archive.StoredValues]

    def model_chunks(self) -> list[dict[str, Tensor]]:
        """Return the tensors per model chunk; one chunk without virtual pipeline parallelism.

        Raises BadData for other content.
        """
        chunks = [
            (int(match[1] or 0), state) for key, state in self.content.items() if (match := _MODEL_CHUNK.fullmatch(str(key)))
        ]
        if not chunks or not all(isinstance(state, dict) for _, state in chunks):
            raise BadData(f"{self.path}: holds no model")
        if any("language_model" in state for _, state in chunks):
            raise BadData(
                f"{self.path}: a model from before megatron-core, with other tensors",
                "convert it first, with tools/checkpoint/convert.py --loader legacy --saver core of a Megatron-LM that has them",
            )
        ordered = [state for _, state in sorted(chunks, key=lambda chunk: chunk[0])]
        return [{name: self._tensor(name, value) for name, value in state.items() if _is_weight(name)} for state in ordered]

    def _tensor(self, name: str, value: Any) -> Tensor:
        stored = self.locate(value)
        chunk = Chunk(tuple(map(range, stored.view.shape)), stored.view)
        return Tensor(f"{self.path.rsplit('/', 2)[-2]}/{name}", stored.dtype, stored.view.shape, (chunk,), stored.dtype)


def _is_weight(name: str) -> bool:
    return not name.endswith("_extra_state")


def recognise(names: Sequence[str]) -> bool:
    return any(_RANK.fullmatch(name) for name in names)


def open_source(directory: str, files: Files) -> Source:
    """Raises BadData when a rank's file is missing, malformed or does not fit the others."""
    ranks = _rank_files(directory, files)
    first = ranks[0, 0, 0]
    arguments = _arguments(first)
    run = directory.rpartition("/")[0] or "."
    architecture = megatron_args.architecture(arguments, first.path, run.rsplit("/", 1)[-1])
    is_local = not any(_ENGINE_NAME.fullmatch(name) for chunk in first.model_chunks() for name in chunk)
    tensors = _model_tensors(ranks, architecture.is_gated, is_local)
    if EMBEDDING not in tensors:
        raise BadData(f"{directory}: has no {EMBEDDING}: not a checkpoint of megatron-core's GPTModel")
    table = MEGATRON_LOCAL if is_local else MEGATRON_TE
    model = Model(architecture, tensors[EMBEDDING].shape[0])
    family = families.family_of(architecture)
    iteration = first.content.get("iteration")
    sizes = [max(coordinates[axis] for coordinates in ranks) + 1 for axis in range(3)]
    stages = len(first.model_chunks())
    tokenizer = discovery.of_run(run, None, files)
    return Source(
        directory=directory,
        format=MEGATRON_LEGACY.name,
        table=table,
        model=model,
        tensors=family.to_canonical(table, model, tensors, directory),
        aliases=tuple(family.aliases(table, model, tensors)),
        tokenizer=tokenizer,
        **beside_model.stored_fields(MEGATRON_LEGACY.name, run, listing(directory), tokenizer, files),
        iteration=iteration if type(iteration) is int and not directory.endswith(checkpoint_layout.RELEASE) else None,
        left_out=tuple(key for key in STATE if key in first.content),
        details={
            "parallel": {
                "tensor_parallel": sizes[0],
                "pipeline_parallel": sizes[1],
                **({"virtual_pipeline_parallel": stages} if stages > 1 else {}),
                **({"expert_parallel": sizes[2]} if sizes[2] > 1 else {}),
            },
            "consumed_samples": arguments.get("consumed_train_samples"),
            "files": len(ranks),
        },
    )


def _rank_files(directory: str, files: Files) -> dict[RankCoordinates, RankFile]:
    """Find the ranks' files by (tensor, pipeline, expert) rank. Raises BadData if a rank's file is missing."""
    names = {name: match for name in listing(directory) if (match := _RANK.fullmatch(name))}
    opened: dict[str, RankFile] = {}
    for name in sorted(names):
        path = f"{directory}/{name}/{FILE}"
        content, locate = torch_archive.read(path, 0, files.size_bytes(path), files, FILE)
        if not isinstance(content, dict):
            raise BadData(f"{path}: not a checkpoint of Megatron-LM")
        opened[name] = RankFile(path, content, locate)
    arguments = _arguments(opened[min(names)])
    # A single number after the tensor rank is the pipeline rank, and the expert rank only without pipeline parallelism.
    expert_size = arguments.get("expert_model_parallel_size") or 1
    experts_only = arguments.get("pipeline_model_parallel_size", 1) == 1 and expert_size > 1
    ranks: dict[RankCoordinates, RankFile] = {}
    for name, match in names.items():
        tensor, second, third = (int(number) if number else 0 for number in match.groups())
        ranks[(tensor, 0, second) if experts_only and not third else (tensor, second, third)] = opened[name]
    sizes = [max(coordinates[axis] for coordinates in ranks) + 1 for axis in range(3)]
    missing = [one for one in itertools.product(*map(range, sizes)) if one not in ranks]
    expected = arguments.get("tensor_model_parallel_size", sizes[0])
    if missing or len(ranks) != len(names) or expected != sizes[0]:
        what = f"tensor, pipeline and expert rank {missing[0]} is missing" if missing else f"expected {expected} tensor ranks"
        raise BadData(f"{directory}: {what}; found {', '.join(sorted(names))}", INCOMPLETE)
    return ranks


def _arguments(rank: RankFile) -> dict[str, Any]:
    """Megatron's arguments. Raises BadData when there are none, or for a version with another row order in linear_qkv."""
    record = rank.content.get("args")
    if not isinstance(record, pickles.Record):
        raise BadData(f"{rank.path}: holds no Megatron arguments")
    version = rank.content.get("checkpoint_version", 0)
    if not isinstance(version, int | float) or version < OLDEST_VERSION:
        raise BadData(f"{rank.path}: has checkpoint version {version}, which has another order of queries, keys and values",
                      "load and save it once with Megatron-LM")  # fmt: skip
    arguments = dict(vars(record))
    tensor, expert_tensor = arguments.get("tensor_model_parallel_size", 1), arguments.get("expert_tensor_parallel_size")
    if arguments.get("num_experts") and expert_tensor not in (None, tensor):
        raise BadData(
            f"{rank.path}: its experts have tensor parallel size {expert_tensor}, the other layers {tensor}: not supported"
        )
    return arguments


def _model_tensors(ranks: Mapping[RankCoordinates, RankFile], gated: bool, local: bool) -> dict[str, Tensor]:
    """All of the model's tensors, unsharded, with the layer numbers of the whole model."""
    tensor_size, pipeline_size, expert_size = (max(coordinates[axis] for coordinates in ranks) + 1 for axis in range(3))
    chunks = {coordinates: rank.model_chunks() for coordinates, rank in ranks.items()}
    stages = len(chunks[0, 0, 0])
    tensors: dict[str, Tensor] = {}
    layers = 0
    for stage, pipeline in itertools.product(range(stages), range(pipeline_size)):
        in_stage: dict[str, Tensor] = {}
        for expert in range(expert_size):
            pieces = [chunks[tensor, pipeline, expert] for tensor in range(tensor_size)]
            if any(len(piece) != stages or set(piece[stage]) != set(pieces[0][stage]) for piece in pieces):
                raise BadData(f"{ranks[0, pipeline, expert].path}: the other tensor parallel ranks hold other tensors")
            first = expert * _experts(pieces[0][stage])
            for name in pieces[0][stage]:
                whole = _unsharded(name, [piece[stage][name] for piece in pieces], gated, local)
                in_stage[_renumbered(name, layers, first)] = whole
        layers += 1 + max((int(match[2]) for name in pieces[0][stage] if (match := _LAYER.fullmatch(name))), default=-1)
        tensors |= in_stage
    return tensors


def _unsharded(name: str, pieces: list[Tensor], gated: bool, local: bool) -> Tensor:
    if len({(len(piece.shape), piece.dtype) for piece in pieces}) > 1:
        raise BadData(f"{pieces[0].name}: its shards differ in dtype or number of dimensions")
    return tensor_parallel.join(name, pieces, gated, local)


def _experts(names: Mapping[str, Tensor]) -> int:
    """The number of experts on a rank."""
    return 1 + max((int(match[2]) for name in names if (match := _LOCAL_EXPERT.fullmatch(name))), default=-1)


def _renumbered(name: str, first_layer: int, first_expert: int) -> str:
    expert = _LOCAL_EXPERT.fullmatch(name)
    if expert:
        name = f"{expert[1]}{int(expert[2]) + first_expert}{expert[3]}"
    layer = _LAYER.fullmatch(name)
    return f"{layer[1]}{int(layer[2]) + first_layer}{layer[3]}" if layer else name


def outputs(target: Target) -> list[OutputFile]:
    """Plan a run with a `release` checkpoint: one file per rank, the tracker last.

    Raises UsageError if a parallel size does not divide the model.
    """
    source, parallel = target.source, target.legacy_target
    architecture = target.model.architecture
    megatron_args.check_computable(architecture, source.directory)
    _check_pipeline(parallel, architecture.num_layers)
    tensor_parallel.check_divides(architecture, parallel.tensor_parallel_size)
    model, canonical = _padded_for(target, parallel.tensor_parallel_size)
    table = source.table if source.format == MEGATRON_LEGACY.name else MEGATRON_LOCAL if parallel.local_layers else MEGATRON_TE
    tensors = families.family_of(architecture).from_canonical(table, model, canonical, source.directory)
    if architecture.tie_embeddings and parallel.pipeline_parallel_size > 1:
        tensors[OUTPUT] = tensors[EMBEDDING]
    stages = parallel.virtual_pipeline_parallel_size or 1
    by_rank = _tensors_by_rank(tensors, architecture.num_layers, parallel, architecture.is_gated, table)
    multiple = _divisible_by(model, parallel.tensor_parallel_size)
    if multiple != VOCAB_MULTIPLE:
        warn(f"the vocabulary has {model.padded_vocab_size} rows: Megatron needs --make-vocab-size-divisible-by {multiple}")
    common = megatron_args.common_state(
        model,
        tensors[EMBEDDING].dtype,
        tensor_model_parallel_size=parallel.tensor_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_parallel_size,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline_parallel_size,
        world_size=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
        make_vocab_size_divisible_by=multiple,
        expert_model_parallel_size=1,
        ckpt_format="torch",
        transformer_impl="local" if table == MEGATRON_LOCAL else "transformer_engine",
    )
    files = []
    for tensor, pipeline in itertools.product(range(parallel.tensor_parallel_size), range(parallel.pipeline_parallel_size)):
        keys = ["model"] if stages == 1 else [f"model{stage}" for stage in range(stages)]
        chunks = {key: by_rank[tensor, stage * parallel.pipeline_parallel_size + pipeline] for stage, key in enumerate(keys)}
        name = f"mp_rank_{tensor:02d}" + (f"_{pipeline:03d}" if parallel.pipeline_parallel_size > 1 else "")
        files.append(_by_tensor(OutputFile(f"{checkpoint_layout.RELEASE}/{name}/{FILE}", torch_archive.archive(common | chunks))))
    files.append(range_checksums.summary(f"{checkpoint_layout.RELEASE}/", files))
    files += discovery.outputs(source.tokenizer)
    files += beside_model.outputs(source.beside, source.special_ids, source.tokenizer)
    return [*files, OutputFile(checkpoint_layout.TRACKER, (checkpoint_layout.RELEASE.encode(),))]


def _by_tensor(output: OutputFile) -> OutputFile:
    """The file with a checksum for each of its tensors."""
    return dataclasses.replace(output, objects=tuple(offset for offset, _ in output.segments_at()))


def _check_pipeline(parallel: LegacyTarget, layers: int) -> None:
    stages = parallel.virtual_pipeline_parallel_size or 1
    if parallel.pipeline_parallel_size == 1 and stages > 1:
        raise UsageError("virtual pipeline stages need a pipeline parallel size of at least 2")
    if layers % (parallel.pipeline_parallel_size * stages):
        raise UsageError(
            f"{layers} layers do not divide into {parallel.pipeline_parallel_size} x {stages} pipeline stages", "choose divisors"
        )


def _padded_for(target: Target, tensor_size: int) -> tuple[Model, dict[str, Tensor]]:
    """The model with a padded vocabulary size that Megatron accepts for that tensor parallel size, and its tensors.

    The source's padding is kept where Megatron accepts it, and for the tensor parallel size of the source. Added rows are zeros.
    """
    model, before = target.model, target.source.details.get("parallel", {}).get("tensor_parallel")
    if model.padded_vocab_size % (tensor_size if before == tensor_size else VOCAB_MULTIPLE * tensor_size) == 0:
        return model, dict(target.tensors)
    padded = model.architecture.padded_vocab_size(tensor_parallel=tensor_size)
    count = padded - model.architecture.vocab_size
    tensors: dict[str, Tensor] = {}
    for name, tensor in target.tensors.items():
        if name.startswith(PADDING):
            more = max(0, count - tensor.shape[0])
            rows = tensor.take(0, range(min(count, tensor.shape[0])))
            tensor = concatenate(name, 0, [rows, zeros(tensor.dtype, (more, *tensor.shape[1:]))]) if more else rows
            if not count:
                continue
        tensors[name] = tensor
    return Model(model.architecture, padded), tensors


def _divisible_by(model: Model, tensor_size: int) -> int:
    """Return the `--make-vocab-size-divisible-by` that pads the vocabulary to the model's padded size in Megatron."""
    candidates = (VOCAB_MULTIPLE << power for power in range(12))
    divisors = (
        divisor for divisor in candidates if model.architecture.padded_vocab_size(divisor, tensor_size) == model.padded_vocab_size
    )
    return next(divisors, model.padded_vocab_size // tensor_size)


def _tensors_by_rank(
    tensors: Mapping[str, Tensor], layers: int, parallel: LegacyTarget, gated: bool, table: str
) -> dict[tuple[int, int], dict[str, Payload]]:
    """Each rank's tensors by (tensor parallel rank, stage in the order of the layers); layer numbers are those in the stage."""
    count = parallel.pipeline_parallel_size * (parallel.virtual_pipeline_parallel_size or 1)
    layers_per_rank, tensor_size = layers // count, parallel.tensor_parallel_size
    predicts_more = any(name.startswith("mtp.") for name in tensors)
    by_rank: dict[tuple[int, int], dict[str, Payload]]
    by_rank = {key: {} for key in itertools.product(range(tensor_size), range(count))}
    for whole_name, tensor in tensors.items():
        name = whole_name
        layer = _LAYER.fullmatch(name)
        if layer:
            stage, number = divmod(int(layer[2]), layers_per_rank)
            name = f"{layer[1]}{number}{layer[3]}"
        else:
            stage = 0 if name.startswith("embedding.") else count - 1
        # Multi-token prediction layers are on the last stage, and look tokens up, too.
        stages = {stage, count - 1} if name == EMBEDDING and predicts_more else {stage}
        for rank, shard in enumerate(tensor_parallel.split(name, tensor, tensor_size, gated, table == MEGATRON_LOCAL)):
            for each_stage in stages:
                by_rank[rank, each_stage][name] = Payload(whole_name, shard)
    return by_rank
