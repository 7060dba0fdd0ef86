"""The operations of the tables: which rows of which canonical tensors lie at which rows of a format's tensor.

A weight op gives blocks, and blocks can be read in both directions: to place rows, and to take them out again. So every op is its
own inverse by construction, and a conversion between two formats costs no more than its last step (`lt_convert.tensors.tensor`).
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol

from lt_shared.architecture import Architecture

Shape = tuple[int, ...]

# The canonical name of the output's weights, the same in every family.
OUTPUT = "lm_head.weight"


@dataclasses.dataclass(frozen=True)
class Block:
    """The rows `rows` of the canonical tensor `name` (of its transpose, if `transposed`) at the rows `place` of the format's.

    Where the format stacks all experts in one tensor, the rows are those of the expert `expert`.
    """

    name: str
    rows: range
    place: range
    expert: int | None = None
    transposed: bool = False


class WeightOp(Protocol):
    """One operation: `combine` names what it does when the format's tensor is made, `separate` when it is taken apart.

    `shape` gives a canonical tensor's shape by its pattern, (0,) for one that the model lacks.
    """

    combine: str
    separate: str

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]: ...


class Rows:
    """Whole tensors, one below the other; a single one is a copy."""

    COPY: ClassVar[str] = "copy"

    def __init__(self, *names: str):
        self.names = names
        self.combine, self.separate = ("concatenate", "split") if len(names) > 1 else (self.COPY, self.COPY)

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]:
        start = 0
        for name in self.names:
            rows = shape(name)[0]
            yield Block(name, range(rows), range(start, start + rows))
            start += rows


class PaddedRows:
    """One tensor and below it the rows that pad the vocabulary, where there are any."""

    combine, separate = "pad rows", "strip padding rows"

    def __init__(self, name: str):
        self.name = name

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]:
        rows, padding = shape(self.name)[0], shape(f"padding.{self.name}")[0]
        yield Block(self.name, range(rows), range(rows))
        if padding:
            yield Block(f"padding.{self.name}", range(padding), range(rows, rows + padding))


class QueryGroups:
    """Attention projections by query group: the group's query heads, its key head, its value head. Weights and biases alike."""

    combine, separate = "interleave query groups", "separate query groups"

    def __init__(self, query: str, key: str, value: str):
        self.query, self.key, self.value = query, key, value

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]:
        groups = architecture.num_query_groups
        sizes = [(name, shape(name)[0] // groups) for name in (self.query, self.key, self.value)]
        start = 0
        for group in range(groups):
            for name, size in sizes:
                yield Block(name, range(group * size, (group + 1) * size), range(start, start + size))
                start += size


class FusedQueryGroups:
    """As `QueryGroups`, of one canonical tensor that has all queries, then all keys, then all values."""

    combine, separate = QueryGroups.combine, QueryGroups.separate

    def __init__(self, name: str):
        self.name = name

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]:
        if not shape(self.name)[0]:
            yield Block(self.name, range(0), range(0))
            return
        starts = {"query": 0, "key": architecture.query_size, "value": architecture.query_size + architecture.kv_size}
        sizes = {"query": (architecture.query_size,), "key": (architecture.kv_size,), "value": (architecture.kv_size,)}
        for block in QueryGroups("query", "key", "value").blocks(architecture, sizes.__getitem__):
            first = starts[block.name] + block.rows.start
            yield Block(self.name, range(first, first + len(block.rows)), block.place)


class RotaryPairs:
    """Heads whose two rotary halves are interleaved: channel i of the first half, then channel i of the second.

    Models that rotate neighbouring channels need it to compute what those that rotate halves do.
    """

    combine, separate = "pair rotary channels", "separate rotary halves"

    def __init__(self, name: str):
        self.name = name

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]:
        head = architecture.kv_channels
        for start in range(0, shape(self.name)[0], head):
            for half in (0, 1):
                first = start + half * head // 2
                yield Block(self.name, range(first, first + head // 2), range(start + half, start + head, 2))


class Transposed:
    """Another op over the transposes of its canonical tensors: Hugging Face's GPT-2 keeps weights as [in, out]."""

    def __init__(self, op: WeightOp):
        self.op = op
        words = ["transpose" if word == Rows.COPY else f"transpose, {word}" for word in (op.combine, op.separate)]
        self.combine, self.separate = words

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]:
        for block in self.op.blocks(architecture, lambda name: shape(name)[::-1]):
            yield dataclasses.replace(block, transposed=True)


class Experts:
    """Another op for every expert, stacked along a new first axis. `{expert}` in its names is the expert."""

    def __init__(self, op: WeightOp):
        self.op = op
        words = ["" if word == Rows.COPY else f"{word}, " for word in (op.combine, op.separate)]
        self.combine, self.separate = f"{words[0]}stack experts", f"{words[1]}split experts"

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]:
        for expert in range(architecture.num_experts or 0):
            for block in self.op.blocks(architecture, shape):
                yield dataclasses.replace(block, name=block.name.replace("{expert}", str(expert)), expert=expert)


class Again:
    """Another name for what the format has already, of another version or another kind of its layers.

    Any of the names is read, and all that are there must be equal. It is written only where readers need it.
    """

    def __init__(self, op: WeightOp, written: bool = False):
        self.op, self.written = op, written
        self.combine, self.separate = op.combine, op.separate

    def repeats(self, shape: Callable[[str], Shape]) -> bool:
        return True

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]:
        yield from self.op.blocks(architecture, shape)


class Output(Again):
    """The output's weights, laid out as `own`: in a model that ties them the embedding again, laid out as `embedding`."""

    def __init__(self, own: WeightOp, embedding: WeightOp, written: bool = False):
        super().__init__(embedding, written)
        self.own = own

    def repeats(self, shape: Callable[[str], Shape]) -> bool:
        return not shape(OUTPUT)[0]

    def blocks(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[Block]:
        yield from (self.op if self.repeats(shape) else self.own).blocks(architecture, shape)
