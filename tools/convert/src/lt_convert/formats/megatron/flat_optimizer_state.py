"""The flat buffers of Megatron's distributed optimizer (`dp_reshardable`, `dp_zero_gather_scatter`) as one tensor per weight.

Every model parallel rank stores its parameters' fp32 main weights and moments one after the other in buckets, without names: in
reverse order of registration (`parameter_order`), each at a multiple of 64 values. Ranks, and with virtual pipeline parallelism
their model chunks, are told apart by numbers. Facts that a checkpoint does not store are derived, and must fit without a
remainder: the buckets' sizes give the number of layers in a stage, however the layers were distributed. A wrong order would still
fit if parameters have one size, so `check_main_weights` compares main weights with the model's own, the same values rounded.

megatron-core's own conversion to `fully_reshardable` shifts values wherever a bucket is padded before its end (0.16 and 0.19:
"param range exceeds unpadded buffer"); here buckets are placed one by one.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lt_convert.containers.dcp import Contents
from lt_convert.formats.megatron import parameter_order
from lt_convert.formats.megatron.parameter_order import ParallelSizes, ParameterOrder
from lt_convert.tensors.reshape import reshaped
from lt_convert.tensors.tensor import Chunk, Tensor
from lt_convert.weights import families, tensor_parallel
from lt_convert.weights.mapping import Model
from lt_shared.console import BadData

ALIGNMENT = 64
"""Parameters begin at multiples of so many values."""

_RANK = r"(?:chained_(?P<chain>\d+)\.)?optimizer\.distributed\.dp_group_idx_(?P<group>\d+)\."
_BUCKET = re.compile(
    _RANK + r"gbuf_idx_(?P<buffer>\d+)\.dtype_\(torch\.(?P<dtype>\w+), torch\.\w+\)\.bucket_idx_(?P<bucket>\d+)\.(?P<kind>\w+)"
)
_GATHERED = re.compile(_RANK + r"param_state(/.*)?")
SETTINGS = re.compile(_RANK + r"optimizer(/.*)?")

Rank = tuple[int, int]
"""The number of an optimizer among a rank's optimizers (experts have their own), and of a model parallel rank."""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A buffer: a rank's parameters with one dtype in one model chunk. Holds the bucket sizes, and flat tensors by kind."""

    dtype: str
    sizes: tuple[int, ...]
    buckets: Mapping[str, Sequence[Tensor]]


def is_stored(contents: Contents) -> bool:
    """Whether a checkpoint has such buffers."""
    return any(re.match(_RANK, key) for key in (*contents.entries, *contents.objects))


def read(
    contents: Contents, model: Model, weights: Mapping[str, Tensor], arguments: Mapping[str, Any], origin: str
) -> dict[str, dict[str, Tensor]]:
    """Read the canonical tensors by kind (`param`, `exp_avg`, `exp_avg_sq`).

    `weights` are the model's canonical tensors; their dtypes decide the parameters' buffers. Raises BadData for buffers that
    do not fit the model or the parallel sizes in `arguments`.
    """
    buffers = _buffers(contents) or _gathered_buffers(contents)
    table = parameter_order.table_of_layers(arguments.get("transformer_impl"))
    sizes = _sizes(buffers, model, arguments, origin)
    order = parameter_order.of_model(model, table, bool(arguments.get("moe_grouped_gemm")), sizes)
    dtypes = {name: weights[canonical].dtype for name, canonical in order.canonical.items()}
    by_kind = _Reader(buffers, order, sizes, dtypes, model, origin).parameters()
    gated = model.architecture.is_gated
    family = families.family_of(model.architecture)
    return {
        kind: family.to_canonical(
            table,
            model,
            {name: tensor_parallel.join(name, shards, gated) for name, shards in named.items()},
            f"{origin}: {kind}",
        )
        for kind, named in by_kind.items()
    }


def _buffers(contents: Contents) -> dict[Rank, list[Buffer]]:
    """The buffers of every rank, in their order; none where the state was gathered."""
    keys: dict[tuple[Rank, int, str], dict[str, dict[int, str]]] = {}
    for key in contents.entries:
        if match := _BUCKET.fullmatch(key):
            rank = (int(match["chain"] or 0), int(match["group"]))
            buffer = keys.setdefault((rank, int(match["buffer"]), match["dtype"]), {})
            buffer.setdefault(match["kind"], {})[int(match["bucket"])] = key
    buffers: dict[Rank, list[Buffer]] = {}
    for (rank, _, dtype), kinds in sorted(keys.items()):
        buckets = {
            kind: [contents.tensor(by_number[number]) for number in sorted(by_number)] for kind, by_number in kinds.items()
        }
        sizes = {kind: tuple(tensor.shape[0] for tensor in tensors) for kind, tensors in buckets.items()}
        if len(set(sizes.values())) > 1:
            raise BadData(f"{contents.directory}: the buckets of {next(iter(kinds))} have other sizes than those of other kinds")
        buffers.setdefault(rank, []).append(Buffer(dtype, next(iter(sizes.values())), buckets))
    return buffers


def _gathered_buffers(contents: Contents) -> dict[Rank, list[Buffer]]:
    """The buffers of a state that was gathered on one rank: an object with one flat tensor for all buckets of a buffer."""
    buffers: dict[Rank, list[Buffer]] = {}
    for key in contents.objects:
        match = _GATHERED.fullmatch(key)
        if not match:
            continue
        content, locate = contents.stored_object(key)
        content = content[0] if isinstance(content, list) and content else content
        if not isinstance(content, dict) or not content.get("buckets_coalesced"):
            raise BadData(f"{contents.directory}: {key} is no gathered state of the distributed optimizer")
        for number in sorted(key for key in content if isinstance(key, int)):
            for (dtype, _), tensors in content[number].items():
                flat = {}
                for kind, record in tensors.items():
                    if kind != "numel_unpadded":
                        values = locate(record)
                        whole = Chunk(tuple(map(range, values.view.shape)), values.view)
                        flat[kind] = [Tensor(f"{key}.{kind}", values.dtype, values.view.shape, (whole,), values.dtype)]
                size = next(iter(flat.values()))[0].shape[0]
                rank = (int(match["chain"] or 0), int(match["group"]))
                buffers.setdefault(rank, []).append(Buffer(dtype.name.removeprefix("torch."), (size,), flat))
    return buffers


def _sizes(buffers: Mapping[Rank, Sequence[Buffer]], model: Model, arguments: Mapping[str, Any], origin: str) -> ParallelSizes:
    """Return the parallel sizes. Raises BadData if the arguments lack them or do not fit the buffers' ranks."""
    if not buffers:
        raise BadData(f"{origin}: its optimizer state is stored as flat buffers under names that are not known here")
    stored = {name: arguments.get(f"{name}_model_parallel_size") for name in ("tensor", "pipeline", "expert")}
    tensor, pipeline = stored["tensor"], stored["pipeline"]
    if type(tensor) is not int or type(pipeline) is not int:
        raise BadData(f"{origin}: its optimizer state is stored as flat buffers, and the parallel sizes are not stored")
    expert = stored["expert"] if isinstance(stored["expert"], int) else 1
    if model.architecture.num_experts and arguments.get("expert_tensor_parallel_size") not in (None, tensor):
        raise BadData(f"{origin}: its experts have a tensor parallel size of their own, and their flat buffers an unknown order")
    if arguments.get("overlap_param_gather_with_optimizer_step"):
        raise BadData(f"{origin}: its model chunks have optimizers of their own, and their flat buffers an unknown order")
    ranks = {(0, group) for group in range(tensor * pipeline)}
    if expert > 1:
        ranks |= {(1, group) for group in range(tensor * pipeline * expert)}
    if set(buffers) != ranks:
        raise BadData(
            f"{origin}: its flat buffers are of {len(buffers)} ranks; tensor, pipeline and expert parallel sizes "
            f"{tensor}, {pipeline} and {expert} give {len(ranks)}"
        )
    chunks = arguments.get("virtual_pipeline_model_parallel_size") or 1
    return ParallelSizes(tensor, pipeline, expert, chunks if type(chunks) is int else 1)


@dataclasses.dataclass(frozen=True)
class _Reader:
    buffers: Mapping[Rank, Sequence[Buffer]]
    order: ParameterOrder
    sizes: ParallelSizes
    dtypes: Mapping[str, str]
    model: Model
    origin: str

    def parameters(self) -> dict[str, dict[str, list[Tensor]]]:
        """Return the shards from the tensor parallel ranks, by kind and by name in the whole model."""
        pieces_by_kind: dict[str, dict[str, list[Tensor]]] = {}
        following = dict.fromkeys(self.buffers, 0)
        start = 0
        for chunk, pipeline in itertools.product(range(self.sizes.chunks), range(self.sizes.pipeline)):
            is_first, is_last = chunk == pipeline == 0, chunk * self.sizes.pipeline + pipeline == self.sizes.stages - 1
            stop = self._last_layer(start, is_first, is_last, following, pipeline)
            names = self.order.stage(start, stop, is_first, is_last)
            for rank, rank_names in self._ranks(names, pipeline):
                for kind, name, tensor in self._placed(rank_names, rank, following):
                    pieces_by_kind.setdefault(kind, {}).setdefault(name, []).append(tensor)
            start = stop
        if start != len(self.order.layers) or any(len(self.buffers[rank]) != count for rank, count in following.items()):
            raise BadData(f"{self.origin}: its flat buffers are not those of a model with {len(self.order.layers)} layers")
        return pieces_by_kind

    def _ranks(self, names: list[str], pipeline: int) -> Iterable[tuple[Rank, list[str]]]:
        """The ranks of a stage, and which of the names each has."""
        tensor, expert = self.sizes.tensor, self.sizes.expert
        dense = [name for name in names if expert == 1 or not parameter_order.is_expert(name)]
        yield from (((0, rank + tensor * pipeline), dense) for rank in range(tensor))
        if expert > 1:
            rank_experts = (self.model.architecture.num_experts or 0) // expert
            experts = [name for name in names if parameter_order.is_expert(name)]
            for number, rank in itertools.product(range(expert), range(tensor)):
                rank_names = parameter_order.own_experts(experts, number, rank_experts)
                yield (1, rank + tensor * (number + expert * pipeline)), rank_names

    def _last_layer(self, start: int, is_first: bool, is_last: bool, following: Mapping[Rank, int], pipeline: int) -> int:
        """Return the last layer of a stage: the parameters up to it fill the buckets of the stage's first rank exactly."""
        for stop in range(start, len(self.order.layers) + 1):
            names = self.order.stage(start, stop, is_first, is_last)
            rank, rank_names = next(iter(self._ranks(names, pipeline)))
            if rank_names and self._fits(rank_names, rank, following[rank]):
                return stop
        raise BadData(
            f"{self.origin}: the flat buffers of pipeline rank {pipeline} are not those of layers from {start} on: "
            "the model has other parameters, or another order of them"
        )

    def _fits(self, names: Sequence[str], rank: Rank, buffer: int) -> bool:
        for dtype, dtype_names in self._by_dtype(names).items():
            if buffer >= len(self.buffers[rank]) or self.buffers[rank][buffer].dtype != dtype:
                return False
            if _places([self._size(name) for name in reversed(dtype_names)], self.buffers[rank][buffer].sizes) is None:
                return False
            buffer += 1
        return True

    def _placed(self, names: Sequence[str], rank: Rank, following: dict[Rank, int]) -> Iterable[tuple[str, str, Tensor]]:
        """(kind, name, values) of a rank's parameters in one model chunk."""
        if not self._fits(names, rank, following[rank]):
            raise BadData(f"{self.origin}: the flat buffers of model parallel rank {rank[1]} do not fit those of other ranks")
        for dtype_names in self._by_dtype(names).values():
            buffer = self.buffers[rank][following[rank]]
            following[rank] += 1
            places = _places([self._size(name) for name in reversed(dtype_names)], buffer.sizes) or []
            for name, (bucket, position) in zip(reversed(dtype_names), places, strict=True):
                for kind, flat in buffer.buckets.items():
                    yield kind, name, reshaped(flat[bucket], position, self.order.shapes[name]).named(f"{kind}.{name}")

    def _by_dtype(self, names: Sequence[str]) -> dict[str, list[str]]:
        """A chunk has one buffer for each dtype, in the order of their first parameters."""
        by_dtype: dict[str, list[str]] = {}
        for name in names:
            by_dtype.setdefault(self.dtypes[name], []).append(name)
        return by_dtype

    def _size(self, name: str) -> int:
        return math.prod(self.order.shapes[name])


def _places(counts: Iterable[int], sizes: Sequence[int]) -> list[tuple[int, int]] | None:
    """Bucket and position of parameters with so many values each, None where they do not fill the buckets exactly.

    A bucket ends with a parameter, or before an embedding that has a bucket of its own, at the next multiple of ALIGNMENT.
    """
    places, bucket, end = [], 0, 0
    for count in counts:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        if end and sizes[bucket] in (end, start):
            bucket, start = bucket + 1, 0
        if bucket == len(sizes) or start + count > sizes[bucket]:
            return None
        places.append((bucket, start))
        end = start + count
    return places if bucket == len(sizes) - 1 and end == sizes[bucket] else None
