"""Every layout and its inverse give back what went in, for any shape."""

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_convert.llama import EMBEDDING, LLAMA, OUTPUT
from lt_convert.mapping import PADDING, Model
from lt_convert.tensors import Bits, Tensor
from lt_shared.architecture import Architecture
from lt_shared.console import BadData


class ArrayTensor:
    """A tensor in memory."""

    dtype = "float32"

    def __init__(self, values: Bits):
        self.values = values

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def read_rows(self, start: int, stop: int) -> Bits:
        return self.values[start:stop]


@st.composite
def models(draw: st.DrawFn) -> Model:
    groups = draw(st.integers(1, 3))
    architecture = Architecture(
        name="any",
        family="llama",
        num_layers=draw(st.integers(1, 11)),
        hidden_size=draw(st.integers(1, 6)),
        ffn_hidden_size=draw(st.integers(1, 5)),
        num_attention_heads=groups * draw(st.integers(1, 3)),
        num_query_groups=groups,
        vocab_size=draw(st.integers(1, 20)),
        max_position_embeddings=8,
        kv_channels=2 * draw(st.integers(1, 3)),
        tie_embeddings=draw(st.booleans()),
    )
    return Model(architecture, architecture.vocab_size + draw(st.integers(0, 5)))


def canonical(model: Model) -> dict[str, Tensor]:
    """Every value of the model is another number."""
    start = 0
    tensors: dict[str, Tensor] = {}
    for name, shape in LLAMA.canonical(model).items():
        size = int(numpy.prod(shape))
        tensors[name] = ArrayTensor(numpy.arange(start, start + size, dtype=numpy.uint32).reshape(shape))
        start += size
    return tensors


@given(models())
def test_to_megatron_and_back_is_the_identity(model: Model) -> None:
    original = canonical(model)
    back = LLAMA.from_megatron(model, LLAMA.to_megatron(model, original, "here"), "there")
    assert list(back) == list(original)
    for name, tensor in original.items():
        rows = tensor.shape[0]
        assert numpy.array_equal(back[name].read_rows(0, rows), tensor.read_rows(0, rows)), name
        assert numpy.array_equal(back[name].read_rows(rows // 2, rows), tensor.read_rows(rows // 2, rows)), name


@given(models())
def test_every_value_is_in_megatron_once(model: Model) -> None:
    original = canonical(model)
    made = LLAMA.to_megatron(model, original, "here")
    values = numpy.concatenate([tensor.read_rows(0, tensor.shape[0]).ravel() for tensor in made.values()])
    assert numpy.array_equal(numpy.sort(values), numpy.arange(len(values), dtype=numpy.uint32))
    untied = () if model.architecture.tie_embeddings else (model.padded_vocab_size * model.architecture.hidden_size,)
    assert len(values) == model.architecture.parameters(model.padded_vocab_size)
    assert ("output_layer.weight" in made) == bool(untied)


def small(tie: bool = False) -> Model:
    return Model(Architecture("small", "llama", 2, 4, 6, 2, 1, 5, 8, tie_embeddings=tie), 8)


def test_query_groups_are_interleaved_as_megatron_does() -> None:
    architecture = Architecture("small", "llama", 1, 1, 1, 4, 2, 1, 8, kv_channels=2)
    made = LLAMA.to_megatron(Model(architecture, 1), canonical(Model(architecture, 1)), "here")
    part = {name: made[f"decoder.layers.0.self_attention.linear_{name}.weight"] for name in ("qkv", "proj")}
    source = canonical(Model(architecture, 1))
    query, key, value = (source[f"model.layers.0.self_attn.{name}_proj.weight"].read_rows(0, 8).ravel() for name in "qkv")
    expected = [*query[:4], *key[:2], *value[:2], *query[4:], *key[2:], *value[2:]]
    assert part["qkv"].read_rows(0, 16).ravel().tolist() == expected


def test_padding_without_a_source_is_zeros() -> None:
    model = small()
    tensors = {name: tensor for name, tensor in canonical(model).items() if not name.startswith(PADDING)}
    embedding = LLAMA.to_megatron(model, tensors, "here")["embedding.word_embeddings.weight"]
    assert embedding.shape == (8, 4)
    assert not embedding.read_rows(5, 8).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), r"model\.norm\.weight is missing"),
        (lambda tensors: tensors.pop(EMBEDDING), r"model\.embed_tokens\.weight is missing"),
        (lambda tensors: tensors.update(extra=tensors[OUTPUT]), "extra has no place"),
        (lambda tensors: tensors.update({OUTPUT: ArrayTensor(numpy.zeros((4, 4), numpy.uint32))}), r"is \[4, 4\].*says \[5, 4\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change: object, message: str) -> None:
    tensors = canonical(small())
    change(tensors)  # type: ignore[operator]
    with pytest.raises(BadData, match=message):
        LLAMA.to_megatron(small(), tensors, "here")


def test_megatron_tensors_that_do_not_fit_are_refused() -> None:
    made = LLAMA.to_megatron(small(), canonical(small()), "here")
    with pytest.raises(BadData, match=r"there: output_layer\.weight has no place"):
        LLAMA.from_megatron(small(tie=True), made, "there")
    tied = LLAMA.to_megatron(small(tie=True), canonical(small(tie=True)), "here")
    with pytest.raises(BadData, match=r"there: output_layer\.weight is missing"):
        LLAMA.from_megatron(small(), tied, "there")
