"""The parameters of megatron-core's GPTModel on one rank, in the registration order of its modules.

The distributed optimizer lays its flat buffers out in this order, reversed, and stores no names. Layers are built alike in
megatron-core 0.16 and 0.19: attention registers its output projection before `linear_qkv`, and a TransformerEngine layer
registers its norm before its weight.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping

from lt_convert.weights import families, tensor_parallel
from lt_convert.weights.mapping import MEGATRON_LOCAL, MEGATRON_TE, Model
from lt_shared.console import BadData

EMBEDDING, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
MODULES = (
    "input_layernorm",
    "self_attention.linear_proj",
    "self_attention.linear_qkv",
    "self_attention.q_layernorm",
    "self_attention.k_layernorm",
    "pre_mlp_layernorm",
    "mlp.router",
    "mlp.experts",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
)
LEAVES = ("layer_norm_weight", "layer_norm_bias", "weight", "bias")

_LAYER = re.compile(r"decoder\.layers\.(?P<layer>\d+)\.(?P<module>.+)\.(?P<leaf>[a-z_]+?)(?P<expert>\d*)")
_EXPERT = re.compile(r".*\.mlp\.experts\.(?:local_experts\.)?(?P<local>\d+)?\.?(?P<module>linear_fc\d)\.\w+?(?P<grouped>\d*)")

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ParallelSizes:
    """How many ranks share a model in each way, and of how many chunks each pipeline rank's part consists."""

    tensor: int
    pipeline: int
    expert: int = 1
    chunks: int = 1

    @property
    def stages(self) -> int:
        return self.pipeline * self.chunks


@dataclasses.dataclass(frozen=True)
class ParameterOrder:
    """The parameters of a model by name, and the parts they are in.

    `shapes` has the parameters' shapes on a tensor parallel rank, `canonical` their first canonical tensors.
    """

    first: tuple[str, ...]
    layers: tuple[tuple[str, ...], ...]
    last: tuple[str, ...]
    shapes: Mapping[str, Shape]
    canonical: Mapping[str, str]

    def stage(self, start: int, stop: int, is_first: bool, is_last: bool) -> list[str]:
        """The names in a stage with the layers from `start` to `stop`."""
        layers = [name for layer in self.layers[start:stop] for name in layer]
        return [*(self.first if is_first else ()), *layers, *(self.last if is_last else ())]


def of_model(model: Model, table: str, grouped: bool, sizes: ParallelSizes) -> ParameterOrder:
    """The order for layers with the names of `table`. `grouped` says that experts are computed by grouped GEMM.

    Raises BadData for a tensor parallel size that does not divide the model, and for parameters whose order is not known.
    """
    entries = families.family_of(model.architecture).entries(table, model)
    names = [name for name, entry in entries.items() if entry.primary and not _EXPERT.fullmatch(name)]
    names += [name for name in entries if (match := _EXPERT.fullmatch(name)) and bool(match["grouped"]) == grouped]
    shapes = {name: entries[name].shape for name in names}
    if model.architecture.tie_embeddings and sizes.pipeline > 1:
        shapes[OUTPUT] = shapes[EMBEDDING]
    outside = [name for name in shapes if not _LAYER.fullmatch(name)]
    layers: list[list[str]] = [[] for _ in range(model.architecture.num_layers)]
    for name in shapes:
        if match := _LAYER.fullmatch(name):
            layers[int(match["layer"])].append(name)
    return ParameterOrder(
        first=tuple(name for name in outside if name.startswith("embedding.")),
        layers=tuple(tuple(sorted(layer, key=_rank_in_layer)) for layer in layers),
        last=tuple(name for name in outside if not name.startswith("embedding.")),
        shapes={name: _shard_shape(name, shape, sizes.tensor) for name, shape in shapes.items()},
        canonical={name: entries[name].row_mappings[0].name for name in shapes},
    )


def is_expert(name: str) -> bool:
    return _EXPERT.fullmatch(name) is not None


def expert_number(name: str) -> int:
    match = _EXPERT.fullmatch(name)
    return int(match["local"] or match["grouped"]) if match else 0


def own_experts(names: Iterable[str], rank: int, count: int) -> list[str]:
    """The names that an expert parallel rank has, of `count` experts for each rank."""
    return [name for name in names if expert_number(name) // count == rank]


def _rank_in_layer(name: str) -> tuple[int, ...]:
    """Sorts the parameters of a layer as its modules register them."""
    match = _LAYER.fullmatch(name)
    assert match is not None
    expert = _EXPERT.fullmatch(name)
    module = "mlp.experts" if expert else match["module"]
    if module not in MODULES or match["leaf"] not in LEAVES:
        raise BadData(f"{name}: its place in the flat buffers of Megatron's distributed optimizer is not known here")
    within = LEAVES.index(match["leaf"])
    if not expert:
        return (MODULES.index(module), within)
    linear = int(expert["module"].removeprefix("linear_fc"))
    order = (int(expert["local"]), linear) if expert["local"] else (linear, int(expert["grouped"] or 0))
    return (MODULES.index(module), *order, within)


def _shard_shape(name: str, shape: Shape, tensor_size: int) -> Shape:
    along = tensor_parallel.axis(name)
    if along is None:
        return shape
    if shape[along] % tensor_size:
        raise BadData(f"{name}: {shape[along]} rows or columns do not divide among {tensor_size} tensor parallel ranks")
    return (*shape[:along], shape[along] // tensor_size, *shape[along + 1 :])


def table_of_layers(implementation: object) -> str:
    """The table with the names of a model's layers, by `transformer_impl` of its arguments; Megatron-LM's default without it."""
    return MEGATRON_LOCAL if implementation == "local" else MEGATRON_TE
