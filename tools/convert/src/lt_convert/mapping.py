"""How the tensors of one checkpoint format are made of those of another: tables of row layouts, each its own inverse.

The canonical names and shapes are Hugging Face's: per layer, unfused, unpadded. A format's table says for each of its tensors
which rows of which canonical tensors lie in it, in order. Read forwards it builds the format's tensors, read backwards it takes
them apart, so one table serves both directions and the two cannot disagree. Another family or format is another table.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from lt_convert.tensors import AssembledTensor, Piece, Tensor, ZeroTensor
from lt_shared.architecture import Architecture
from lt_shared.console import BadData

LAYER = "{layer}"
PADDING = "padding."


@dataclasses.dataclass(frozen=True)
class Model:
    """What decides every shape: the architecture and the rows of the embedding, padding included. Raises BadData for too few."""

    architecture: Architecture
    padded_vocab_size: int

    def __post_init__(self) -> None:
        if self.padded_vocab_size < self.architecture.vocab_size:
            raise BadData(f"the embedding has {self.padded_vocab_size} rows for a vocabulary of {self.architecture.vocab_size}")


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows `start` to `start + rows` of the canonical tensor `name`."""

    name: str
    start: int
    rows: int


class Layout(Protocol):
    """One operation: `combine` says what it does when the format's tensor is made, `separate` when it is taken apart."""

    combine: str
    separate: str

    def blocks(self, model: Model, rows: Callable[[str], int]) -> Iterator[Block]: ...


class Rows:
    """Whole tensors, one below the other; a single one is a copy."""

    def __init__(self, *names: str):
        self.names = names
        self.combine, self.separate = ("concatenate", "split") if len(names) > 1 else ("copy", "copy")

    def blocks(self, model: Model, rows: Callable[[str], int]) -> Iterator[Block]:
        for name in self.names:
            yield Block(name, 0, rows(name))


class PaddedRows:
    """One tensor and below it the rows that pad the vocabulary."""

    combine, separate = "pad rows", "strip padding rows"

    def __init__(self, name: str):
        self.name = name

    def blocks(self, model: Model, rows: Callable[[str], int]) -> Iterator[Block]:
        yield Block(self.name, 0, rows(self.name))
        if rows(PADDING + self.name):
            yield Block(PADDING + self.name, 0, rows(PADDING + self.name))


class QueryGroups:
    """Attention projections by query group: the group's query heads, its key head, its value head."""

    combine, separate = "interleave query groups", "separate query groups"

    def __init__(self, query: str, key: str, value: str):
        self.query, self.key, self.value = query, key, value

    def blocks(self, model: Model, rows: Callable[[str], int]) -> Iterator[Block]:
        head = model.architecture.kv_channels
        queries = rows(self.query) // model.architecture.num_query_groups
        for group in range(model.architecture.num_query_groups):
            yield Block(self.query, group * queries, queries)
            yield Block(self.key, group * head, head)
            yield Block(self.value, group * head, head)


@dataclasses.dataclass(frozen=True)
class Family:
    """`shapes` gives every canonical tensor's shape as attributes of the architecture; `untied` exist only without tying."""

    shapes: Mapping[str, tuple[str, ...]]
    vocabulary: frozenset[str]
    untied: frozenset[str]
    megatron: Mapping[str, Layout]

    def canonical(self, model: Model) -> dict[str, tuple[int, ...]]:
        """Every canonical tensor with its shape, layer by layer; the padding rows of a vocabulary are a tensor of their own."""
        architecture = model.architecture
        padding = model.padded_vocab_size - architecture.vocab_size
        shapes: dict[str, tuple[int, ...]] = {}
        for pattern, sizes in self.shapes.items():
            if pattern in self.untied and architecture.tie_embeddings:
                continue
            shape = tuple(getattr(architecture, size) for size in sizes)
            for name in _names(pattern, architecture.num_layers):
                shapes[name] = shape
            if pattern in self.vocabulary and padding:
                shapes[PADDING + pattern] = (padding, *shape[1:])
        return _layer_by_layer(shapes)

    def _megatron_blocks(self, model: Model) -> Iterator[tuple[str, Layout, list[Block]]]:
        """Every Megatron tensor of the model with its operation and what it is made of."""
        shapes = self.canonical(model)
        for pattern, layout in self.megatron.items():
            for layer, name in enumerate(_names(pattern, model.architecture.num_layers)):

                def rows(canonical: str, layer: int = layer) -> int:
                    return shapes.get(canonical.replace(LAYER, str(layer)), (0,))[0]

                blocks = [
                    dataclasses.replace(block, name=block.name.replace(LAYER, str(layer))) for block in layout.blocks(model, rows)
                ]
                if all(block.rows for block in blocks):
                    yield name, layout, blocks

    def to_megatron(self, model: Model, canonical: Mapping[str, Tensor], origin: str) -> dict[str, AssembledTensor]:
        """Megatron's tensors made of the canonical ones. Padding rows without a source are zeros.

        Raises BadData, naming `origin`, for a canonical tensor that is missing, too many, or of another shape.
        """
        shapes = self.canonical(model)
        zeros = {
            name: ZeroTensor(canonical[name.removeprefix(PADDING)].dtype, shape)
            for name, shape in shapes.items()
            if name.startswith(PADDING) and name not in canonical and name.removeprefix(PADDING) in canonical
        }
        sources = {**canonical, **zeros}
        _check_shapes(sources, shapes, origin)
        return {
            name: AssembledTensor(
                layout.combine, [Piece(block.name, sources[block.name], block.start, block.rows) for block in blocks]
            )
            for name, layout, blocks in self._megatron_blocks(model)
        }

    def from_megatron(self, model: Model, tensors: Mapping[str, Tensor], origin: str) -> dict[str, AssembledTensor]:
        """The canonical tensors, taken out of Megatron's. Raises BadData as `to_megatron`."""
        shapes = self.canonical(model)
        expected: dict[str, tuple[int, ...]] = {}
        pieces: dict[str, list[tuple[int, Piece]]] = {name: [] for name in shapes}
        operations: dict[str, str] = {}
        for name, layout, blocks in self._megatron_blocks(model):
            expected[name] = (sum(block.rows for block in blocks), *shapes[blocks[0].name][1:])
            start = 0
            for block in blocks:
                if name in tensors:
                    pieces[block.name].append((block.start, Piece(name, tensors[name], start, block.rows)))
                operations[block.name] = layout.separate
                start += block.rows
        _check_shapes(tensors, expected, origin)
        return {
            name: AssembledTensor(operations[name], [piece for _, piece in sorted(found, key=lambda item: item[0])])
            for name, found in pieces.items()
        }


def _names(pattern: str, layers: int) -> list[str]:
    return [pattern.replace(LAYER, str(layer)) for layer in range(layers)] if LAYER in pattern else [pattern]


def _layer_by_layer(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Order by the number in the name, so that a reader of the result loads one layer after the other."""

    def layer(name: str) -> int:
        return next((int(part) for part in name.split(".") if part.isdigit()), -1)

    before = [name for name in shapes if layer(name) < 0 and "embed" in name]
    after = [name for name in shapes if layer(name) < 0 and "embed" not in name]
    layers = sorted((name for name in shapes if layer(name) >= 0), key=layer)
    return {name: shapes[name] for name in (*before, *layers, *after)}


def _check_shapes(found: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], origin: str) -> None:
    unknown = [name for name in found if name not in expected]
    if unknown:
        raise BadData(
            f"{origin}: {_listed(unknown)} has no place in this model", "the model family or its configuration is another one"
        )
    missing = [name for name in expected if name not in found]
    if missing:
        raise BadData(
            f"{origin}: {_listed(missing)} is missing", "the checkpoint is incomplete, or the configuration is another model's"
        )
    for name, shape in expected.items():
        if found[name].shape != shape:
            raise BadData(f"{origin}: {name} is {list(found[name].shape)}, the configuration says {list(shape)}")


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"
