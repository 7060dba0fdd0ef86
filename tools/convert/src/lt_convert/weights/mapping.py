"""How the tensors of one checkpoint format are made of those of another: tables of weight ops, each its own inverse.

The canonical names and shapes are Hugging Face's: per layer, unfused, unpadded. A format's table says for each of its tensors
which rows of which canonical tensors lie at which of its rows. Read forwards it builds the format's tensors, read backwards it
takes them apart, so one table serves both directions and the two cannot disagree. A family of models is a set of such tables
(`lt_convert.weights.families`), and its canonical tensors are one table more: the identity.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from lt_convert.tensors.tensor import Tensor, assemble, zeros
from lt_convert.weights.weight_ops import OUTPUT, Again, Block, Output, Rows, WeightOp
from lt_shared.architecture import Architecture
from lt_shared.console import BadData, UsageError

LAYER, EXPERT = "{layer}", "{expert}"
PADDING = "padding."
# Megatron's torch_dist, and the files of one rank with layers of TransformerEngine or of megatron-core alone.
HF, MEGATRON, MEGATRON_TE, MEGATRON_LOCAL = "hf", "megatron", "megatron-te", "megatron-local"
TORCHTITAN, TORCHTITAN_2025 = "torchtitan", "torchtitan-2025"

# Of old files: what rotary embeddings compute once. TorchTitan 0.1 stored it as complex numbers.
ROTARY_BUFFERS = r".*\.rotary_emb\.inv_freq|freqs_cis|rope_cache"
# Heads or experts of all layers. Llama 3.1 405B has 16,128 heads, DeepSeek V3 15,616 experts.
MAXIMUM_PARTS = 1_000_000

Shape = tuple[int, ...]
Table = Mapping[str, WeightOp]


@dataclasses.dataclass(frozen=True)
class Model:
    """What decides every shape: the architecture and the rows of the embedding, padding included.

    Raises BadData for too few rows, and for a number of layers, heads or experts that nobody has and a plan could not list.
    """

    architecture: Architecture
    padded_vocab_size: int

    def __post_init__(self) -> None:
        sizes = self.architecture
        heads, experts = sizes.num_attention_heads, sizes.num_experts or 0
        if sizes.num_layers * max(heads, experts) > MAXIMUM_PARTS:
            raise BadData(
                f"{sizes.name}: {sizes.num_layers} layers of {heads} heads and {experts} experts: no model is that large"
            )
        if self.padded_vocab_size < self.architecture.vocab_size:
            raise BadData(f"the embedding has {self.padded_vocab_size} rows for a vocabulary of {self.architecture.vocab_size}")


@dataclasses.dataclass(frozen=True)
class Entry:
    """One tensor of a format in one model: its name and shape, what it does, and what it is made of.

    One that is not `primary` repeats another tensor of the format.
    """

    name: str
    shape: Shape
    op: WeightOp
    blocks: tuple[Block, ...]
    primary: bool

    @property
    def written(self) -> bool:
        return self.primary or (isinstance(self.op, Again) and self.op.written)


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models.

    `shapes` gives the canonical tensors of an architecture by pattern, in the order of a Hugging Face file; `{layer}` and
    `{expert}` in a name stand for every layer and expert. `embedding` is the canonical name of the input's embedding, whose rows
    Megatron pads, as the output's. `base` begins the names of all tensors but the output's; files of the bare decoder lack it.
    `computed` matches names of buffers that some files carry and every reader computes itself. `stateful` are the modules of
    Megatron that keep a byte item beside their weights, those of TransformerEngine's layers included.
    """

    name: str
    shapes: Callable[[Architecture], Mapping[str, Shape]]
    tables: Mapping[str, Table]
    stateful: tuple[str, ...]
    embedding: str = "model.embed_tokens.weight"
    base: str = "model."
    computed: str = ROTARY_BUFFERS

    def canonical(self, model: Model) -> dict[str, Shape]:
        """Every canonical tensor with its shape, layer by layer; the padding rows of a vocabulary are a tensor of their own."""
        padding = model.padded_vocab_size - model.architecture.vocab_size
        patterns = self.shapes(model.architecture)
        result: dict[str, Shape] = {}
        for name, pattern, _ in _expanded(patterns, model.architecture):
            result[name] = patterns[pattern]
            if pattern in (self.embedding, OUTPUT) and padding:
                result[PADDING + name] = (padding, *patterns[pattern][1:])
        return result

    def table(self, name: str, architecture: Architecture) -> Table:
        """The table of a format. Raises UsageError when the format has no such models."""
        if name == HF:
            patterns = self.shapes(architecture)
            return {pattern: Rows(pattern) for pattern in patterns} | {OUTPUT: Output(Rows(OUTPUT), Rows(self.embedding))}
        if name not in self.tables:
            formats = "hf, megatron-dist and megatron-legacy" + (" and torchtitan" if TORCHTITAN in self.tables else "")
            raise UsageError(f"{name} has no models of the {self.name} family", f"formats that have: {formats}")
        return self.tables[name]

    def entries(self, table: str, model: Model) -> dict[str, Entry]:
        """Every tensor that a checkpoint of `model` in the format `table` may have, layer by layer."""
        canonical = self.canonical(model)
        ops = self.table(table, model.architecture)
        result: dict[str, Entry] = {}
        for name, pattern, fill in _expanded(ops, model.architecture):

            def shape(canonical_pattern: str, fill: Callable[[str], str] = fill) -> Shape:
                return canonical.get(fill(canonical_pattern).replace(EXPERT, "0"), (0,))

            op = ops[pattern]
            blocks = tuple(dataclasses.replace(block, name=fill(block.name)) for block in op.blocks(model.architecture, shape))
            if all(block.rows for block in blocks):
                primary = not (isinstance(op, Again) and op.repeats(shape))
                result[name] = Entry(name, _shape(blocks, canonical), op, blocks, primary)
        return result

    def make(self, table: str, model: Model, canonical: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
        """A format's tensors made of the canonical ones. Padding rows without a source are zeros.

        Raises BadData, naming `origin`, for canonical tensors that are missing, too many, or of another shape.
        """
        shapes = self.canonical(model)
        optional = {name for name in shapes if name.startswith(PADDING)}
        _check(canonical, shapes, optional, origin)
        sources = {name: zeros(canonical[name.removeprefix(PADDING)].dtype, shapes[name]) for name in optional - set(canonical)}
        sources |= canonical
        return {
            name: assemble(name, entry.shape, [_made_from(block, sources[block.name], entry.shape) for block in entry.blocks])
            for name, entry in self.entries(table, model).items()
            if entry.written
        }

    def take_apart(self, table: str, model: Model, tensors: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
        """The canonical tensors, taken out of a format's. Padding rows are among them where the format has them.

        Raises BadData as `make`.
        """
        entries = self.entries(table, model)
        found = self._named(table, tensors)
        alternatives = _alternatives(entries, found)
        optional = {name for name, entry in entries.items() if not entry.primary or entry.blocks in alternatives}
        _check(found, {name: entry.shape for name, entry in entries.items()}, optional, origin)
        pieces: dict[str, list[tuple[tuple[range, ...], Tensor]]] = {}
        shapes = self.canonical(model)
        for blocks, names in alternatives.items():
            for block in blocks:
                pieces.setdefault(block.name, []).append(_taken_from(block, found[names[0]], shapes[block.name]))
        return {name: assemble(name, shape, pieces[name]) for name, shape in shapes.items() if name in pieces}

    def repeated(self, table: str, model: Model, tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor, Tensor]]:
        """Names with the tensors under them that repeat others, and those others, which must be equal: a tied output, for one.

        `take_apart` takes the others.
        """
        found = self._named(table, tensors)
        groups = _alternatives(self.entries(table, model), found).values()
        return [(other, found[other], found[names[0]]) for names in groups for other in names[1:]]

    def extra_states(self, model: Model) -> list[str]:
        """The keys of the byte items in a torch_dist checkpoint: a model with such modules does not load without them."""
        layers, experts = model.architecture.num_layers, model.architecture.num_experts
        keys = []
        for module in self.stateful:
            key = f"{module.replace(f'.{LAYER}', '').replace(f'.{EXPERT}', '')}._extra_state/shard_"
            if EXPERT in module:
                keys += [f"{key}{layer}.{expert}_{layers}.{experts}" for layer in range(layers) for expert in range(experts or 0)]
            else:
                keys += [f"{key}{layer}_{layers}" for layer in range(layers)] if LAYER in module else [f"{key}0_1"]
        return keys

    def operations(self, source: str, target: str, model: Model) -> dict[str, str]:
        """What happens to the tensors of the format `source` to give each of the format `target`, in words."""
        separated: dict[str, str] = {}
        for entry in self.entries(source, model).values():
            separated |= {block.name: entry.op.separate for block in entry.blocks if entry.primary}
        words = {}
        for name, entry in self.entries(target, model).items():
            steps = [separated[block.name] for block in entry.blocks if block.name in separated] + [entry.op.combine]
            words[name] = ", ".join(dict.fromkeys(step for step in steps if step != Rows.COPY)) or Rows.COPY
        return words

    def _named(self, table: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Without computed buffers; in Hugging Face files of a bare decoder, with the names that the whole model has."""
        kept = {name: tensor for name, tensor in tensors.items() if not re.fullmatch(self.computed, name)}
        bare = table == HF and self.embedding not in kept and self.embedding.removeprefix(self.base) in kept
        return {self.base + name if bare and name != OUTPUT else name: tensor for name, tensor in kept.items()}


def _expanded(patterns: Iterable[str], architecture: Architecture) -> Iterator[tuple[str, str, Callable[[str], str]]]:
    """Names, their patterns and what fills the patterns, layer by layer where the patterns with layers stand."""
    patterns = list(patterns)
    layered = [pattern for pattern in patterns if LAYER in pattern]
    first = patterns.index(layered[0]) if layered else len(patterns)
    yield from ((pattern, pattern, str) for pattern in patterns[:first])
    for layer in range(architecture.num_layers):
        for pattern in layered:
            for expert in range(architecture.num_experts or 0) if EXPERT in pattern else (None,):

                def fill(text: str, layer: int = layer, expert: int | None = expert) -> str:
                    text = text.replace(LAYER, str(layer))
                    return text if expert is None else text.replace(EXPERT, str(expert))

                yield fill(pattern), pattern, fill
    yield from ((pattern, pattern, str) for pattern in patterns[first:] if LAYER not in pattern)


def _alternatives(entries: Mapping[str, Entry], found: Mapping[str, Tensor]) -> dict[tuple[Block, ...], list[str]]:
    """The names in `found` that stand for the same values, the primary one first, by what those are."""
    names: dict[tuple[Block, ...], list[str]] = {}
    for entry in sorted(entries.values(), key=lambda entry: not entry.primary):
        if entry.name in found:
            names.setdefault(entry.blocks, []).append(entry.name)
    return names


def _shape(blocks: tuple[Block, ...], canonical: Mapping[str, Shape]) -> Shape:
    """The shape of the tensor that the blocks make up."""
    shape = canonical[blocks[0].name]
    rest = shape[:-1][::-1] if blocks[0].transposed else shape[1:]
    experts = {block.expert for block in blocks}
    rows = sum(len(block.rows) for block in blocks)
    return (rows, *rest) if experts == {None} else (len(experts), rows // len(experts), *rest)


def _made_from(block: Block, source: Tensor, shape: Shape) -> tuple[tuple[range, ...], Tensor]:
    """The piece that a block is in a tensor of `shape`, and where it lies there."""
    piece = (source.transposed() if block.transposed else source).take(0, block.rows)
    if block.expert is None:
        return (block.place, *map(range, shape[1:])), piece
    return (range(block.expert, block.expert + 1), block.place, *map(range, shape[2:])), piece.expanded(1)


def _taken_from(block: Block, tensor: Tensor, shape: Shape) -> tuple[tuple[range, ...], Tensor]:
    """The piece that a block is in the canonical tensor of `shape`, and where it lies there."""
    piece = (tensor if block.expert is None else tensor.at(block.expert)).take(0, block.place)
    if block.transposed:
        return (*map(range, shape[:-1]), block.rows), piece.transposed()
    return (block.rows, *map(range, shape[1:])), piece


def _check(found: Mapping[str, Tensor], expected: Mapping[str, Shape], optional: set[str], origin: str) -> None:
    unknown = [name for name in found if name not in expected]
    if unknown:
        raise BadData(
            f"{origin}: no place in this model for {listed(unknown)}", "the model family or its configuration is another one"
        )
    missing = [name for name in expected if name not in found and name not in optional]
    if missing:
        raise BadData(
            f"{origin}: missing {listed(missing)}", "the checkpoint is incomplete, or the configuration is another model's"
        )
    for name, tensor in found.items():
        if tensor.shape != expected[name]:
            raise BadData(f"{origin}: {name} is {list(tensor.shape)}, the configuration says {list(expected[name])}")


def listed(names: Iterable[str]) -> str:
    """All names, those that differ in the number of the layer alone as one: `layers.{0-3,7}.weight`."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?\.)(\d+)(\..*)", name)
        numbers.setdefault((match[1], match[3]) if match else (name, ""), []).extend([int(match[2])] if match else [])
    return ", ".join(f"{start}{_ranges(found) if found else ''}{end}" for (start, end), found in numbers.items())


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return text if len(numbers) == 1 else f"{{{text}}}"
