"""Convert tensors between checkpoint formats with tables of invertible weight ops.

Canonical names and shapes are Hugging Face's: per layer, unfused, unpadded. A format's table maps the rows of every tensor
to rows of canonical tensors. `Family.from_canonical` and `Family.to_canonical` apply the same table in both directions, so the
two cannot disagree. A model family is a set of such tables (`lt_convert.weights.families`). The table of the Hugging Face
format is the identity.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from lt_convert.tensors.tensor import Tensor, assemble, zeros
from lt_convert.weights import hybrid_layers
from lt_convert.weights.placeholders import EXPERT, MTP, expanded, extra_states, is_layered, stands_for
from lt_convert.weights.tensor_names import abbreviated
from lt_convert.weights.weight_ops import OUTPUT_WEIGHT, Alias, OutputLayer, RowMapping, Rows, WeightOp
from lt_shared.console import BadData, UsageError
from lt_shared.models.architecture import Architecture

PADDING = "padding."
# Ends the name of a router's balancing bias: a buffer that the router counts tokens for, float32 in every model; and LFM2's.
BALANCING_BIAS, _BALANCING_BIAS_OF_LFM2 = "e_score_correction_bias", "feed_forward.expert_bias"
# Names of xIELU's constants in a layer's MLP (Apertus): files have them as tensors without axes.
XIELU_CONSTANTS = ("act_fn.beta", "act_fn.eps")
# Names of tables: the format's, with a comma and what differs where a format has several. A legacy file has the tensor names of
# TransformerEngine layers or of Megatron's local ones; TorchTitan renamed tensors in 2026.
HF, MEGATRON, MEGATRON_TE, MEGATRON_LOCAL = "hf", "megatron-dist", "megatron-legacy", "megatron-legacy, local layers"
# HybridModel's tensors in torch_dist; every family that GPTModel's table has gets one.
MEGATRON_HYBRID = "megatron-hybrid"
TORCHTITAN, TORCHTITAN_2025 = "torchtitan", "torchtitan, 2025"

# Buffers in old files that RoPE computes when it is constructed. TorchTitan 0.1 stored complex numbers.
ROPE_BUFFERS = r".*\.rotary_emb\.inv_freq|freqs_cis|rope_cache"
# Attention heads, or experts, summed over the layers. Llama 3.1 405B has 16,128 heads, DeepSeek V3 15,616 experts.
MAXIMUM_HEADS_OR_EXPERTS = 1_000_000

Shape = tuple[int, ...]
Table = Mapping[str, WeightOp]


@dataclasses.dataclass(frozen=True)
class Model:
    """What determines every tensor's shape: the architecture and the padded vocabulary size.

    Raises BadData for a padded size below the vocabulary size, and for so many layers, heads or experts that no model has them
    and a plan could not list them.
    """

    architecture: Architecture
    padded_vocab_size: int

    def __post_init__(self) -> None:
        sizes = self.architecture
        heads, experts = sizes.num_attention_heads, sizes.num_experts or 0
        if sizes.num_layers * max(heads, experts) > MAXIMUM_HEADS_OR_EXPERTS:
            raise BadData(
                f"{sizes.name}: {sizes.num_layers} layers of {heads} heads and {experts} experts: no model is that large"
            )
        if self.padded_vocab_size < self.architecture.vocab_size:
            raise BadData(f"the embedding has {self.padded_vocab_size} rows for a vocabulary of {self.architecture.vocab_size}")


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a format in one model: its name, shape and weight op, and the rows of canonical tensors in it.

    An entry that is not `primary` is an alias for another tensor in the format.
    """

    name: str
    shape: Shape
    op: WeightOp
    row_mappings: tuple[RowMapping, ...]
    primary: bool

    @property
    def written(self) -> bool:
        return self.primary or (isinstance(self.op, Alias) and self.op.written)


@dataclasses.dataclass(frozen=True, eq=False)
class Family:
    """A model family.

    `shapes` gives the canonical tensors of an architecture by pattern, in the order of a Hugging Face file; `{layer}` and
    `{expert}` in a name stand for every layer and expert, the other placeholders above for some layers. `tables` are the tables
    by format. `embedding` is the canonical name of the input embedding; Megatron pads its rows and the output layer's rows.
    `base_prefix` starts every tensor's name but the output layer's (transformers' `base_model_prefix`); files saved from
    the base model alone lack it. `buffers` matches names of buffers that some files have and every reader computes itself.
    `extra_state_modules` are Megatron's modules that store an `_extra_state`, modules of TransformerEngine layers included.
    `hf_prefixes` maps prefixes of names in a larger model's Hugging Face files to the language model's prefixes; `other_parts`
    matches names outside the language model. `hf_form` gives tensors of Hugging Face files the form that transformers writes, if
    published files have another one. `repeated` are tensors that Hugging Face files repeat under another name; they are
    written, too.
    """

    name: str
    shapes: Callable[[Architecture], Mapping[str, Shape]]
    tables: Mapping[str, Table]
    extra_state_modules: tuple[str, ...]
    repeated: Table = dataclasses.field(default_factory=dict)
    embedding: str = "model.embed_tokens.weight"
    base_prefix: str = "model."
    buffers: str = ROPE_BUFFERS
    hf_prefixes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    other_parts: str = r"(?!)"
    hf_form: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict

    def canonical(self, model: Model) -> dict[str, Shape]:
        """The shape of every canonical tensor, layer by layer. The padding rows of the vocabulary are tensors of their own."""
        padding = model.padded_vocab_size - model.architecture.vocab_size
        patterns = self.shapes(model.architecture)
        result: dict[str, Shape] = {}
        for name, pattern, _ in expanded(patterns, model.architecture):
            result[name] = patterns[pattern]
            if pattern in (self.embedding, OUTPUT_WEIGHT) and padding:
                result[PADDING + name] = (padding, *patterns[pattern][1:])
        return result

    def of_parameters(self) -> Self:
        """Return the family without the tensors that no optimizer updates, to convert the state of an optimizer."""

        def shapes(architecture: Architecture) -> Mapping[str, Shape]:
            return {name: shape for name, shape in self.shapes(architecture).items() if is_trained(name)}

        return dataclasses.replace(self, shapes=shapes)

    def table(self, name: str, architecture: Architecture) -> Table:
        """The table named `name` (HF, MEGATRON ...). Raises UsageError when the format has no models of this family."""
        if name == HF:
            patterns = self.shapes(architecture)
            return {pattern: Rows(pattern) for pattern in patterns} | {
                **self.repeated,
                OUTPUT_WEIGHT: OutputLayer(Rows(OUTPUT_WEIGHT), Rows(self.embedding)),
            }
        if name == MEGATRON_HYBRID and MEGATRON in self.tables:
            return hybrid_layers.table(self.tables[MEGATRON])
        if name not in self.tables:
            requested, *formats = (table.partition(",")[0] for table in (name, HF, *self.tables))
            having = ", ".join(dict.fromkeys(formats))
            raise UsageError(f"{requested} has no models of the {self.name} family", f"formats that have them: {having}")
        return self.tables[name]

    @functools.lru_cache(maxsize=1)  # noqa: B019 (families are constants of the program)
    def entries(self, table: str, model: Model) -> Mapping[str, Entry]:
        """Every tensor that a checkpoint of `model` in the format `table` may have, layer by layer.

        Of DeepSeek-V3 there are 46,183, which take a second; a conversion asks for them several times.
        """
        canonical = self.canonical(model)
        ops = self.table(table, model.architecture)
        result: dict[str, Entry] = {}
        for name, pattern, fill in expanded(ops, model.architecture):

            def shape(canonical_pattern: str, fill: Callable[[str], str] = fill) -> Shape:
                return canonical.get(fill(canonical_pattern).replace(EXPERT, "0"), (0,))

            op = ops[pattern]
            mappings = op.row_mappings(model.architecture, shape)
            if EXPERT in pattern:
                mappings = (one.of_expert(int(fill(EXPERT))) for one in mappings)
            row_mappings = tuple(one.renamed(fill(one.name), one.expert) for one in mappings)
            if all(one.canonical_rows for one in row_mappings):
                primary = not (isinstance(op, Alias) and op.is_alias(shape))
                result[name] = Entry(name, _shape(row_mappings, canonical), op, row_mappings, primary)
        return result

    def from_canonical(self, table: str, model: Model, canonical: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
        """Return a format's tensors, made from the canonical tensors. Padding rows that `canonical` lacks are zeros.

        Raises BadData, naming `origin`, for canonical tensors that are missing, unknown, or have another shape.
        """
        shapes = self.canonical(model)
        optional = {name for name in shapes if name.startswith(PADDING)}
        _check(canonical, shapes, optional, origin)
        sources = {name: zeros(canonical[name.removeprefix(PADDING)].dtype, shapes[name]) for name in optional - set(canonical)}
        sources |= canonical
        return {
            name: assemble(
                name, entry.shape, [_from_canonical(one, sources[one.name], entry.shape) for one in entry.row_mappings]
            )
            for name, entry in self.entries(table, model).items()
            if entry.written
        }

    def to_canonical(self, table: str, model: Model, tensors: Mapping[str, Tensor], origin: str) -> dict[str, Tensor]:
        """Return the canonical tensors, made from a format's tensors, with padding rows if the format has them.

        Raises BadData, naming `origin`, for tensors of the format that are missing, unknown, or have another shape.
        """
        entries = self.entries(table, model)
        named = self._named(table, tensors)
        alternatives = _alternatives(entries, named)
        optional = {name for name, entry in entries.items() if not entry.primary or entry.row_mappings in alternatives}
        _check(named, {name: entry.shape for name, entry in entries.items()}, optional, origin)
        pieces: dict[str, list[tuple[tuple[range, ...], Tensor]]] = {}
        shapes = self.canonical(model)
        for row_mappings, names in alternatives.items():
            tensor = named[names[0]]
            experts = tensor.slices() if row_mappings[0].expert is not None else ()
            for one in row_mappings:
                its = tensor if one.expert is None else experts[one.expert]
                pieces.setdefault(one.name, []).append(_to_canonical(one, its, shapes[one.name]))
        return {name: assemble(name, shape, pieces[name]) for name, shape in shapes.items() if name in pieces}

    def aliases(self, table: str, model: Model, tensors: Mapping[str, Tensor]) -> list[tuple[str, Tensor, Tensor]]:
        """Tensors that must equal another one, such as a tied output layer: (name, tensor, the other tensor).

        `to_canonical` uses the other one.
        """
        named = self._named(table, tensors)
        groups = _alternatives(self.entries(table, model), named).values()
        return [(other, named[other], named[names[0]]) for names in groups for other in names[1:]]

    def extra_states(self, table: str, model: Model) -> list[str]:
        """The `_extra_state` keys of a torch_dist checkpoint. Megatron does not load the model without them."""
        architecture = model.architecture
        layers, experts = architecture.num_layers, architecture.num_experts
        modules: Iterable[str] = self.extra_state_modules
        if table == MEGATRON_HYBRID:
            # HybridModel stores the output layer's, GPTModel does not.
            modules = (*map(hybrid_layers.module, modules), "output_layer")
        keys = []
        for module in modules:
            if MTP in module or not has_stacked_layers(table, architecture):
                shards = range(experts or 0) if EXPERT in module else (0,)
                named = expanded([module.replace(f".{EXPERT}", "")], architecture)
                keys += [f"{name}._extra_state/shard_{shard}_{len(shards)}" for name, _, _ in named for shard in shards]
            elif not is_layered(module) or stands_for(module, 0, architecture):
                keys += extra_states(module, layers, experts or 0)
        return keys

    def operations(self, source: str, target: str, model: Model) -> dict[str, str]:
        """Describe how each tensor of the table `target` is made from tensors of the table `source`, in words."""
        separated: dict[str, str] = {}
        for entry in self.entries(source, model).values():
            separated |= {one.name: entry.op.separate for one in entry.row_mappings if entry.primary}
        words = {}
        for name, entry in self.entries(target, model).items():
            steps = [separated[one.name] for one in entry.row_mappings if one.name in separated] + [entry.op.combine]
            words[name] = ", ".join(dict.fromkeys(step for step in steps if step != Rows.COPY)) or Rows.COPY
        return words

    def _named(self, table: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`tensors` without buffers. Names in Hugging Face files of the base model alone get the base prefix."""
        without_buffers = {name: tensor for name, tensor in tensors.items() if not re.fullmatch(self.buffers, name)}
        if table == HF:
            without_buffers = self._of_language_model(without_buffers)
        is_base = (
            table == HF
            and self.embedding not in without_buffers
            and self.embedding.removeprefix(self.base_prefix) in without_buffers
        )
        return {
            self.base_prefix + name if is_base and name != OUTPUT_WEIGHT else name: tensor
            for name, tensor in without_buffers.items()
        }

    def _of_language_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Select the language model's tensors, under their names in a file of the language model alone."""
        renamed: dict[str, Tensor] = {}
        for name, tensor in self.hf_form(tensors).items():
            if re.fullmatch(self.other_parts, name):
                continue
            for beginning, alone in self.hf_prefixes.items():
                name = re.sub(f"^(?:{beginning})", alone, name)
            if name in renamed:
                raise BadData(f"{name} is there twice, once as a part of a larger model", "remove the one that is not meant")
            renamed[name] = tensor
        return renamed


def is_balancing_bias(name: str) -> bool:
    """Whether the canonical tensor of this name is a router's balancing bias, which no gradient changes."""
    return name.endswith((BALANCING_BIAS, _BALANCING_BIAS_OF_LFM2))


def is_trained(name: str) -> bool:
    """Whether an optimizer updates the canonical tensor of this name."""
    return not name.endswith((BALANCING_BIAS, _BALANCING_BIAS_OF_LFM2, *XIELU_CONSTANTS))


def has_stacked_layers(table: str, architecture: Architecture) -> bool:
    """Whether torch_dist stacks a weight's layers under one key: as GPTModel does where all layers are alike."""
    return table != MEGATRON_HYBRID and architecture.has_stacked_layers


def _alternatives(entries: Mapping[str, Entry], tensors: Mapping[str, Tensor]) -> dict[tuple[RowMapping, ...], list[str]]:
    """The names in `tensors` of tensors with the same row mappings, the primary one first."""
    names: dict[tuple[RowMapping, ...], list[str]] = {}
    for entry in sorted(entries.values(), key=lambda entry: not entry.primary):
        if entry.name in tensors:
            names.setdefault(entry.row_mappings, []).append(entry.name)
    return names


def _shape(row_mappings: tuple[RowMapping, ...], canonical: Mapping[str, Shape]) -> Shape:
    """The shape of the format's tensor with these row mappings."""
    shape = canonical[row_mappings[0].name]
    if not shape:
        return shape
    if row_mappings[0].canonical_expert is not None:
        shape = shape[1:]
    trailing = shape[:-1][::-1] if row_mappings[0].transposed else shape[1:]
    experts = {one.expert for one in row_mappings}
    rows = sum(len(one.canonical_rows) for one in row_mappings)
    return (rows, *trailing) if experts == {None} else (len(experts), rows // len(experts), *trailing)


def _from_canonical(rows: RowMapping, source: Tensor, shape: Shape) -> tuple[tuple[range, ...], Tensor]:
    """The rows of the canonical tensor `source`, and their indices in the format's tensor of `shape`."""
    if not shape:
        return (), source
    if rows.canonical_expert is not None:
        source = source.at(rows.canonical_expert)
    piece = (source.transposed() if rows.transposed else source).take(0, rows.canonical_rows)
    if rows.expert is None:
        return (rows.format_rows, *map(range, shape[1:])), piece
    return (range(rows.expert, rows.expert + 1), rows.format_rows, *map(range, shape[2:])), piece.expanded(1)


def _to_canonical(rows: RowMapping, tensor: Tensor, shape: Shape) -> tuple[tuple[range, ...], Tensor]:
    """Return rows of the format's `tensor`, or of an expert's slice, and their indices in the canonical tensor of `shape`."""
    if not shape:
        return (), tensor
    piece = tensor.take(0, rows.format_rows)
    if rows.canonical_expert is None:
        return _in_canonical(rows, piece, shape)
    indices, piece = _in_canonical(rows, piece, shape[1:])
    return (range(rows.canonical_expert, rows.canonical_expert + 1), *indices), piece.expanded(1)


def _in_canonical(rows: RowMapping, piece: Tensor, shape: Shape) -> tuple[tuple[range, ...], Tensor]:
    """Return `piece` in the layout of the canonical tensor of `shape`, or of an expert's slice, and its indices there."""
    if rows.transposed:
        return (*map(range, shape[:-1]), rows.canonical_rows), piece.transposed()
    return (rows.canonical_rows, *map(range, shape[1:])), piece


def _check(tensors: Mapping[str, Tensor], expected: Mapping[str, Shape], optional: set[str], origin: str) -> None:
    unknown = [name for name in tensors if name not in expected]
    if unknown:
        raise BadData(
            f"{origin}: this model has no {abbreviated(unknown)}", "the model family or its configuration is another one"
        )
    missing = [name for name in expected if name not in tensors and name not in optional]
    if missing:
        raise BadData(
            f"{origin}: missing {abbreviated(missing)}", "the checkpoint is incomplete, or the configuration is another model's"
        )
    for name, tensor in tensors.items():
        if tensor.shape != expected[name]:
            raise BadData(f"{origin}: {name} is {list(tensor.shape)}, the configuration says {list(expected[name])}")
