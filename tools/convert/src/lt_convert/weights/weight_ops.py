"""The operations of the tables: they map rows of canonical tensors to rows of a format's tensor.

A weight op gives row mappings, and a row mapping can be applied in both directions. So every op has its inverse by construction,
and a conversion between two formats costs no more than its last step (`lt_convert.tensors.tensor`).
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import ClassVar, Protocol, Self

from lt_shared.models.architecture import Architecture

Shape = tuple[int, ...]

# The canonical name of the output layer's weight, the same in every family.
OUTPUT_WEIGHT = "lm_head.weight"


@dataclasses.dataclass(frozen=True, slots=True)
class RowMapping:
    """The rows `canonical_rows` of the canonical tensor `name` are the rows `format_rows` of the format's tensor.

    `transposed` means the rows of the canonical tensor's transpose. If the format stacks the experts in one tensor,
    `format_rows` belong to the expert `expert`. If the canonical tensor stacks them, `canonical_rows` belong to the expert
    `canonical_expert`, and `transposed` applies to the slice of that expert.
    """

    name: str
    canonical_rows: range
    format_rows: range
    expert: int | None = None
    transposed: bool = False
    canonical_expert: int | None = None

    def of_expert(self, expert: int) -> Self:
        """Return the mapping for `expert`: if every expert has its tensor, an op is written for the first expert."""
        name, of_stack = self.name.replace("{expert}", str(expert)), None if self.canonical_expert is None else expert
        return type(self)(name, self.canonical_rows, self.format_rows, self.expert, self.transposed, of_stack)

    def renamed(self, name: str, expert: int | None) -> Self:
        return type(self)(name, self.canonical_rows, self.format_rows, expert, self.transposed, self.canonical_expert)


class WeightOp(Protocol):
    """One operation. `combine` and `separate` name it, for plans, on the way from canonical tensors and back to them.

    `shape` gives a canonical tensor's shape by its pattern, (0,) for one that the model lacks.
    """

    combine: str
    separate: str

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]: ...


class Rows:
    """Whole tensors, concatenated along the rows; a single one is a copy."""

    COPY: ClassVar[str] = "copy"

    def __init__(self, *names: str):
        self.names = names
        self.combine, self.separate = ("concatenate", "split") if len(names) > 1 else (self.COPY, self.COPY)

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        start = 0
        for name in self.names:
            # A tensor without axes counts as one row.
            rows = shape(name)[0] if shape(name) else 1
            yield RowMapping(name, range(rows), range(start, start + rows))
            start += rows


class PaddedRows:
    """One tensor, followed by the rows that pad the vocabulary, if any."""

    combine, separate = "pad rows", "strip padding rows"

    def __init__(self, name: str):
        self.name = name

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        rows, padding = shape(self.name)[0], shape(f"padding.{self.name}")[0]
        yield RowMapping(self.name, range(rows), range(rows))
        if padding:
            yield RowMapping(f"padding.{self.name}", range(padding), range(rows, rows + padding))


class QueryGroups:
    """Megatron's linear_qkv: for each query group its query heads, its key head, its value head. For weights and biases.

    With `adjacent_pairs`, the canonical tensors are a model's whose RoPE pairs adjacent channels. The first rotated channels of
    all pairs then come before the second ones, so that the same model pairs channel i with channel i + rotary channels / 2.
    """

    combine, separate = "interleave query groups", "separate query groups"

    def __init__(self, query: str, key: str, value: str, *, adjacent_pairs: bool = False):
        self.query, self.key, self.value, self.adjacent_pairs = query, key, value, adjacent_pairs

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        groups = architecture.num_query_groups
        sizes = [(name, shape(name)[0] // groups) for name in (self.query, self.key, self.value)]
        start = 0
        for group in range(groups):
            for name, size in sizes:
                for rows in self._ordered(architecture, name, range(group * size, (group + 1) * size)):
                    yield RowMapping(name, rows, range(start, start + len(rows)))
                    start += len(rows)

    def _ordered(self, architecture: Architecture, name: str, rows: range) -> Iterator[range]:
        """Divide the canonical `rows` of a group into ranges, in the order of the format's rows."""
        if not self.adjacent_pairs or name == self.value:
            yield rows
            return
        head, rotated = architecture.kv_channels, architecture.rotary_channels
        for first in range(rows.start, rows.stop, head):
            yield range(first, first + rotated, 2)
            yield range(first + 1, first + rotated, 2)
            if rotated < head:
                yield range(first + rotated, first + head)


class FusedQueryGroups:
    """As `QueryGroups`, from one canonical tensor that has all queries, then all keys, then all values."""

    combine, separate = QueryGroups.combine, QueryGroups.separate

    def __init__(self, name: str):
        self.name = name

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        if not shape(self.name)[0]:
            yield RowMapping(self.name, range(0), range(0))
            return
        starts = {"query": 0, "key": architecture.query_size, "value": architecture.query_size + architecture.kv_size}
        sizes = {"query": (architecture.query_size,), "key": (architecture.kv_size,), "value": (architecture.kv_size,)}
        for mapping in QueryGroups("query", "key", "value").row_mappings(architecture, sizes.__getitem__):
            first = starts[mapping.name] + mapping.canonical_rows.start
            yield RowMapping(self.name, range(first, first + len(mapping.canonical_rows)), mapping.format_rows)


class InterleavedRope:
    """Query or key heads for interleaved RoPE: channel i of a head's first half, then channel i of its second half.

    Interleaved RoPE pairs adjacent channels, `rotate_half` pairs channel i with i + head_dim / 2. With this permutation a model
    of the first kind computes the same as one of the second.
    """

    combine, separate = "interleave RoPE channels", "separate RoPE halves"

    def __init__(self, name: str):
        self.name = name

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        head = architecture.kv_channels
        for start in range(0, shape(self.name)[0], head):
            for half in (0, 1):
                first = start + half * head // 2
                yield RowMapping(self.name, range(first, first + head // 2), range(start + half, start + head, 2))


class Transposed:
    """Another op over the transposes of its canonical tensors: Hugging Face's GPT-2 stores weights as [in, out]."""

    def __init__(self, op: WeightOp):
        self.op = op
        words = ["transpose" if word == Rows.COPY else f"transpose, {word}" for word in (op.combine, op.separate)]
        self.combine, self.separate = words

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        for mapping in self.op.row_mappings(architecture, lambda name: shape(name)[::-1]):
            yield dataclasses.replace(mapping, transposed=True)


class Experts:
    """Another op for every expert, stacked along a new first axis. `{expert}` in its names is the expert."""

    def __init__(self, op: WeightOp):
        self.op = op
        words = ["" if word == Rows.COPY else f"{word}, " for word in (op.combine, op.separate)]
        self.combine, self.separate = f"{words[0]}stack experts", f"{words[1]}split experts"

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        # All experts are alike, and a model has thousands: they are counted out, not looked up.
        of_one = list(self.op.row_mappings(architecture, shape))
        for expert in range(architecture.num_experts or 0):
            for mapping in of_one:
                expert_rows = mapping.of_expert(expert)
                yield expert_rows.renamed(expert_rows.name, expert)


class ExpertSlice:
    """Another op over an expert's slice of canonical tensors that stack all experts: gpt-oss's in Hugging Face's files."""

    def __init__(self, op: WeightOp):
        self.op = op
        self.combine, self.separate = op.combine, op.separate

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        for mapping in self.op.row_mappings(architecture, lambda name: shape(name)[1:] or (0,)):
            yield dataclasses.replace(mapping, canonical_expert=0)


class GateAndUp:
    """One tensor whose even rows are a gate's and whose odd rows are an up's: all of the gate, then all of the up."""

    combine, separate = "separate gate and up", "interleave gate and up"

    def __init__(self, name: str):
        self.name = name

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        rows = shape(self.name)[0]
        for half in (0, 1):
            yield RowMapping(self.name, range(half, rows, 2), range(half * (rows // 2), (half + 1) * (rows // 2)))


class Alias:
    """A second name for a tensor, from another version of the format or another layer implementation.

    Either name is read, and if a checkpoint has both, their values must be equal. With `written`, the alias is written, too.
    """

    def __init__(self, op: WeightOp, written: bool = False):
        self.op, self.written = op, written
        self.combine, self.separate = op.combine, op.separate

    def is_alias(self, shape: Callable[[str], Shape]) -> bool:
        return True

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        yield from self.op.row_mappings(architecture, shape)


class OutputLayer(Alias):
    """The output layer's weight: `op`, or with tied embeddings an alias of the embedding, with the op `embedding`."""

    def __init__(self, op: WeightOp, embedding: WeightOp, written: bool = False):
        super().__init__(embedding, written)
        self.untied = op

    def is_alias(self, shape: Callable[[str], Shape]) -> bool:
        return not shape(OUTPUT_WEIGHT)[0]

    def row_mappings(self, architecture: Architecture, shape: Callable[[str], Shape]) -> Iterator[RowMapping]:
        yield from (self.op if self.is_alias(shape) else self.untied).row_mappings(architecture, shape)
