"""Every table and its inverse give back what went in, for any shape; what does not fit is refused by name."""

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_convert.tensors.tensor import Tensor, View, tensor_in_files
from lt_convert.weights.families import FAMILIES, family_of, llama
from lt_convert.weights.mapping import (
    HF,
    MEGATRON,
    MEGATRON_LOCAL,
    PADDING,
    TORCHTITAN,
    TORCHTITAN_2025,
    Family,
    Model,
    Table,
    has_stacked_layers,
)
from lt_convert.weights.placeholders import layer_with
from lt_convert.weights.tensor_names import abbreviated
from lt_convert.weights.weight_ops import (
    OUTPUT_WEIGHT,
    Alias,
    Experts,
    FusedQueryGroups,
    InterleavedRope,
    QueryGroups,
    Rows,
    Transposed,
)
from lt_shared.console import BadData, UsageError
from lt_shared.models.architecture import Architecture
from lt_shared.models.architecture.sizes import ATTENTION, LATENT_ATTENTION
from lt_shared.models.presets import preset

SETTINGS = settings(max_examples=10, deadline=None)
VALUES = 1 << 16


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of uint32 values, each its own index."""
    path = tmp_path_factory.mktemp("numbers") / "numbers"
    path.write_bytes(numpy.arange(VALUES, dtype=numpy.uint32).tobytes())
    return str(path)


def tensors(file: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Tensors of these shapes, one after the other in `file`: no two values are equal."""
    start, made = 0, {}
    for name, shape in shapes.items():
        made[name] = tensor_in_files(name, "float32", shape, [((0,) * len(shape), shape, file, 4 * start)])
        start += int(numpy.prod(shape))
    assert start <= VALUES
    return made


def values(tensor: Tensor) -> numpy.ndarray:
    with Files() as files:
        return blocks.read(tensor, files)


def every(found: dict[str, Tensor]) -> dict[str, numpy.ndarray]:
    return {name: values(tensor) for name, tensor in found.items()}


FEATURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"add_qkv_bias": True},
    "qwen3": {"qk_layernorm": True},
    "mixtral": {"num_experts": 3},
    "gpt2": {"family": "gpt"},
}
TABLES = [(name, table) for name, family in FAMILIES.items() if name in FEATURES for table in (HF, *family.tables)]


@st.composite
def models(draw: st.DrawFn, name: str) -> Model:
    groups = draw(st.integers(1, 3))
    heads = groups * (1 if name == "gpt2" else draw(st.integers(1, 3)))
    channels = 2 * draw(st.integers(1, 3))
    architecture = Architecture(
        name="any",
        num_layers=draw(st.integers(1, 3)),
        hidden_size=heads * channels if name == "gpt2" else draw(st.integers(1, 6)),
        ffn_hidden_size=draw(st.integers(1, 5)),
        num_attention_heads=heads,
        num_query_groups=groups,
        vocab_size=draw(st.integers(1, 20)),
        max_position_embeddings=8,
        kv_channels=channels,
        tie_embeddings=draw(st.booleans()),
        **{"family": "llama", **FEATURES[name]},
    )
    return Model(architecture, architecture.vocab_size + draw(st.integers(0, 5)))


@pytest.mark.parametrize(("name", "table"), TABLES)
@SETTINGS
@given(data=st.data())
def test_from_canonical_and_back_is_the_identity(numbers: str, name: str, table: str, data: st.DataObject) -> None:
    model = data.draw(models(name))
    family = family_of(model.architecture)
    assert family is FAMILIES[name]
    original = tensors(numbers, family.canonical(model))
    result = family.from_canonical(table, model, original, "here")
    back = family.to_canonical(table, model, result, "there")
    padded = table.startswith("megatron")
    assert list(back) == [name for name in original if padded or not name.startswith(PADDING)]
    with Files() as files:
        for key, tensor in back.items():
            assert numpy.array_equal(blocks.read(tensor, files), blocks.read(original[key], files)), key
        for key, again, first in family.aliases(table, model, result):
            assert numpy.array_equal(blocks.read(again, files), blocks.read(first, files)), key


@pytest.mark.parametrize("name", FEATURES)
def test_every_value_is_in_megatron_once(numbers: str, name: str) -> None:
    for tied in (False, True):
        architecture = Architecture(
            "a", num_layers=2, hidden_size=8, ffn_hidden_size=6, num_attention_heads=2, num_query_groups=2, vocab_size=5,
            max_position_embeddings=8, tie_embeddings=tied, **{"family": "llama", **FEATURES[name]},
        )  # fmt: skip
        model = Model(architecture, 8)
        family = family_of(architecture)
        result = family.from_canonical(MEGATRON, model, tensors(numbers, family.canonical(model)), "here")
        again = [key for key, _, _ in family.aliases(MEGATRON, model, result)]
        found = numpy.concatenate([values(tensor).ravel() for key, tensor in result.items() if key not in again])
        assert numpy.array_equal(numpy.sort(found), numpy.arange(architecture.parameters(8)))
        assert ("output_layer.weight" in result) is not tied


def small(**changes: Any) -> Model:
    architecture = Architecture("small", "llama", 2, 4, 6, 2, 1, 5, 8)
    return Model(dataclasses.replace(architecture, **changes), 8)


def family_with(shapes: dict[str, tuple[int, ...]], table: Table) -> Family:
    return Family("one", lambda _: shapes, {"it": table}, ())


def made(numbers: str, table: Table, shapes: dict[str, tuple[int, ...]], **changes: Any) -> tuple[list[Any], dict[str, Any]]:
    """The only tensor that `table` makes of tensors of these shapes, and those, all as nested lists."""
    family, model = family_with(shapes, table), small(num_layers=1, **changes)
    canonical = tensors(numbers, family.canonical(model))
    result = family.from_canonical("it", model, canonical, "here")
    assert family.canonical(model).keys() == family.to_canonical("it", model, result, "there").keys()
    for name, tensor in family.to_canonical("it", model, result, "there").items():
        assert numpy.array_equal(values(tensor), values(canonical[name])), name
    (only,) = every(result).values()
    return only.tolist(), {name: value.tolist() for name, value in every(canonical).items()}


GROUPED = {"num_attention_heads": 4, "num_query_groups": 2, "kv_channels": 2}


@pytest.mark.parametrize("tail", [(), (3,)], ids=["bias", "weight"])
def test_query_groups(numbers: str, tail: tuple[int, ...]) -> None:
    shapes = {"q": (8, *tail), "k": (4, *tail), "v": (4, *tail)}
    result, parts = made(numbers, {"qkv": QueryGroups("q", "k", "v")}, shapes, **GROUPED)
    q, k, v = parts.values()
    assert result == [*q[:4], *k[:2], *v[:2], *q[4:], *k[2:], *v[2:]]


def test_fused_and_transposed_query_groups(numbers: str) -> None:
    result, parts = made(numbers, {"qkv": Transposed(FusedQueryGroups("c"))}, {"c": (3, 16)}, **GROUPED)
    rows = numpy.array(parts["c"]).T.tolist()
    q, k, v = rows[:8], rows[8:12], rows[12:]
    assert result == [*q[:4], *k[:2], *v[:2], *q[4:], *k[2:], *v[2:]]


def test_interleaved_rope(numbers: str) -> None:
    """Two heads of six channels: the halves 0 1 2 and 3 4 5 become the pairs 0 3, 1 4, 2 5."""
    result, parts = made(numbers, {"wq": InterleavedRope("q")}, {"q": (12, 2)}, kv_channels=6)
    assert result == [parts["q"][row] for row in (0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11)]


def test_stacked_experts(numbers: str) -> None:
    shapes = {"{layer}.{expert}.gate": (2, 3), "{layer}.{expert}.up": (2, 3)}
    result, parts = made(
        numbers, {"fc1.{layer}": Experts(Rows("{layer}.{expert}.gate", "{layer}.{expert}.up"))}, shapes, num_experts=2
    )
    assert result == [[*parts["0.0.gate"], *parts["0.0.up"]], [*parts["0.1.gate"], *parts["0.1.up"]]]


def test_a_name_for_every_expert(numbers: str) -> None:
    shapes = {"{layer}.{expert}.down": (2, 3)}
    family, model = family_with(shapes, {"fc2.{layer}.{expert}": Rows("{layer}.{expert}.down")}), small(num_experts=2)
    canonical = tensors(numbers, family.canonical(model))
    result = family.from_canonical("it", model, canonical, "here")
    assert list(result) == ["fc2.0.0", "fc2.0.1", "fc2.1.0", "fc2.1.1"]
    assert values(result["fc2.1.0"]).tolist() == values(canonical["1.0.down"]).tolist()


def test_the_local_layers_keep_norms_apart(numbers: str) -> None:
    result = llama.LLAMA.from_canonical(MEGATRON_LOCAL, small(), tensors(numbers, llama.LLAMA.canonical(small())), "here")
    names = [name for name in result if "layers.1" in name and "norm" in name]
    assert names == ["decoder.layers.1.input_layernorm.weight", "decoder.layers.1.pre_mlp_layernorm.weight"]


def test_padding_without_a_source_is_zeros(numbers: str) -> None:
    model = small()
    given = {name: tensor for name, tensor in tensors(numbers, llama.LLAMA.canonical(model)).items() if PADDING not in name}
    embedding = values(llama.LLAMA.from_canonical(MEGATRON, model, given, "here")["embedding.word_embeddings.weight"])
    assert embedding.shape == (8, 4)
    assert not embedding[5:].any()
    assert embedding[:5].any()


@pytest.mark.parametrize(
    ("table", "output", "written"),
    [
        (HF, OUTPUT_WEIGHT, False),
        (MEGATRON, "output_layer.weight", False),
        (TORCHTITAN, "lm_head.weight", True),
        (TORCHTITAN_2025, "output.weight", True),
    ],
)
def test_a_tied_output_layer_is_an_alias_of_the_embedding(numbers: str, table: str, output: str, written: bool) -> None:
    model, family = small(tie_embeddings=True), llama.LLAMA
    result = family.from_canonical(table, model, tensors(numbers, family.canonical(model)), "here")
    embedding = next(iter(result))
    assert (output in result) is written
    without = {name: tensor for name, tensor in result.items() if name != output}
    assert family.aliases(table, model, without) == []
    assert family.to_canonical(table, model, without, "there").keys() == family.to_canonical(table, model, result, "there").keys()
    twice = {**without, output: result[embedding]}
    assert family.aliases(table, model, twice) == [(output, result[embedding], result[embedding])]


def test_an_alias_is_read_in_place_of_the_first_name(numbers: str) -> None:
    family = family_with({"norm": (2,)}, {"a": Rows("norm"), "b": Alias(Rows("norm")), "c": Alias(Rows("norm"), written=True)})
    canonical = tensors(numbers, family.canonical(small()))
    result = family.from_canonical("it", small(), canonical, "here")
    assert list(result) == ["a", "c"]
    for name in ("a", "b", "c"):
        back = family.to_canonical("it", small(), {name: result["a"]}, "there")
        assert values(back["norm"]).tolist() == values(canonical["norm"]).tolist()
    with pytest.raises(BadData, match=r"there: missing a$"):
        family.to_canonical("it", small(), {}, "there")


@pytest.mark.parametrize("tied", [False, True])
def test_torchtitan_between_two_versions(numbers: str, tied: bool) -> None:
    """The projections had their new names, the output its old one."""
    model, family = small(tie_embeddings=tied), llama.LLAMA
    result = family.from_canonical(TORCHTITAN, model, tensors(numbers, family.canonical(model)), "here")
    assert "output.weight" not in result
    renamed = {name.replace("lm_head", "output"): tensor for name, tensor in result.items()}
    back = family.to_canonical(TORCHTITAN, model, renamed, "there")
    assert every(back).keys() == every(family.to_canonical(TORCHTITAN, model, result, "there")).keys()
    if tied:
        assert [name for name, _, _ in family.aliases(TORCHTITAN, model, renamed)] == ["output.weight"]
    else:
        assert numpy.array_equal(values(back[OUTPUT_WEIGHT]), values(result["lm_head.weight"]))


def test_files_of_the_base_model_are_read(numbers: str) -> None:
    model, family = small(), llama.LLAMA
    original = tensors(numbers, family.canonical(model))
    base = {name.removeprefix("model."): tensor for name, tensor in original.items() if not name.startswith(PADDING)}
    assert family.to_canonical(HF, model, base, "there").keys() == {name for name in original if not name.startswith(PADDING)}


def test_buffers_are_left_out(numbers: str) -> None:
    model, family = small(), llama.LLAMA
    original = {name: tensor for name, tensor in tensors(numbers, family.canonical(model)).items() if PADDING not in name}
    more = {"model.layers.1.self_attn.rotary_emb.inv_freq": original[llama.FINAL_NORM]}
    assert family.to_canonical(HF, model, original | more, "there").keys() == original.keys()


Change = Callable[[dict[str, Tensor]], object]


def without(names: Iterable[str]) -> Change:
    return lambda found: collections.deque((found.pop(name) for name in names), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(["model.norm.weight"]), r"here: missing model\.norm\.weight$"),
        (without([llama.EMBEDDING, OUTPUT_WEIGHT]), r"missing model\.embed_tokens\.weight, lm_head\.weight$"),
        (
            without([f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 1)]),
            r"missing model\.layers\.\{0-1\}\.mlp\.up_proj",
        ),
        (lambda found: found.update(one=found[OUTPUT_WEIGHT], two=found[OUTPUT_WEIGHT]), "this model has no one, two$"),
        (lambda found: found.update({OUTPUT_WEIGHT: found[llama.GATE.format(layer=0)]}), r"is \[6, 4\].*says \[5, 4\]"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(numbers: str, change: Change, message: str) -> None:
    found = tensors(numbers, llama.LLAMA.canonical(small()))
    change(found)
    with pytest.raises(BadData, match=message):
        llama.LLAMA.from_canonical(MEGATRON, small(), found, "here")


def test_megatron_tensors_that_do_not_fit_are_refused(numbers: str) -> None:
    family = llama.LLAMA
    result = family.from_canonical(MEGATRON, small(), tensors(numbers, family.canonical(small())), "here")
    del result["output_layer.weight"], result["decoder.layers.1.mlp.linear_fc2.weight"]
    with pytest.raises(BadData, match=r"there: missing decoder\.layers\.1\.mlp\.linear_fc2\.weight, output_layer\.weight$"):
        family.to_canonical(MEGATRON, small(), result, "there")


def test_pieces_of_several_dtypes_are_not_joined(numbers: str) -> None:
    found = tensors(numbers, llama.LLAMA.canonical(small()))
    key = llama.KEY.format(layer=0)
    found[key] = dataclasses.replace(found[key], dtype="bfloat16", stored_dtype="bfloat16")
    with pytest.raises(BadData, match=r"linear_qkv\.weight: its pieces are stored as bfloat16 and float32"):
        llama.LLAMA.from_canonical(MEGATRON, small(), found, "here")


def test_an_embedding_with_too_few_rows_is_refused() -> None:
    with pytest.raises(BadData, match="4 rows for a vocabulary of 5"):
        Model(small().architecture, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 10**9},
        {"num_attention_heads": 10**9, "num_query_groups": 10**9},
        {"num_experts": 10**9, "num_query_groups": 2},
    ],
)
def test_a_model_of_absurd_size_is_refused_before_it_is_planned(change: dict[str, int]) -> None:
    with pytest.raises(BadData, match="no model is that large"):
        Model(dataclasses.replace(small().architecture, **change), 8)


def test_a_format_without_such_models_is_refused() -> None:
    with pytest.raises(UsageError, match="zarr has no models of the llama family"):
        llama.LLAMA.entries("zarr", small())


def test_operations_in_words() -> None:
    words = llama.LLAMA.operations(TORCHTITAN, MEGATRON, small())
    assert words["decoder.layers.1.self_attention.linear_qkv.weight"] == "separate RoPE halves, interleave query groups"
    assert words["decoder.final_layernorm.weight"] == "copy"
    words = llama.LLAMA.operations(MEGATRON, HF, small())
    assert words[llama.QUERY.format(layer=0)] == "separate query groups"
    assert words[llama.EMBEDDING] == "strip padding rows"


def test_a_plan_reads_nothing() -> None:
    """Values are looked for where the view says, and nowhere before they are read."""
    shape = (5, 4)
    tensor = Tensor(
        "nowhere", "float32", shape, tensor_in_files("t", "float32", shape, [((0, 0), shape, "/gone", 0)]).chunks, "float32"
    )
    part = llama.LLAMA.from_canonical(
        HF, small(), {**tensors("/gone", llama.LLAMA.canonical(small())), llama.EMBEDDING: tensor}, "here"
    )
    view = part[llama.EMBEDDING].chunks[0].view
    assert view == View("/gone", 0, shape, (16, 4))


def test_names_that_differ_in_the_layer_are_written_as_one() -> None:
    names = ["a.weight", *(f"layers.{layer}.b.weight" for layer in (0, 1, 2, 5)), "layers.3.c.7.weight"]
    assert abbreviated(names) == "a.weight, layers.{0-2,5}.b.weight, layers.3.c.7.weight"


def test_layers_with_different_mixers() -> None:
    """Each has its own tensors, and torch_dist stores none of them as one of all layers."""
    architecture = dataclasses.replace(preset("tiny-deepseek-v2"), num_layers=3, moe_first_dense_layers=0)
    vars(architecture)["mixers"] = {ATTENTION: (1,), LATENT_ATTENTION: (0, 2)}
    names = {kind: f"layers.{layer_with(kind)}.{kind}.weight" for kind in (ATTENTION, LATENT_ATTENTION)}
    modules = tuple(f"decoder.layers.{layer_with(kind)}.{kind}" for kind in names)
    family = Family("mixed", lambda model: dict.fromkeys(names.values(), (2,)), {}, modules)
    expected = ["layers.0.latent_attention", "layers.1.attention", "layers.2.latent_attention"]
    assert list(family.canonical(Model(architecture, 2048))) == [f"{name}.weight" for name in expected]
    assert sorted(family.extra_states(MEGATRON, Model(architecture, 2048))) == [
        f"decoder.{name}._extra_state/shard_0_1" for name in expected
    ]
    assert not has_stacked_layers(MEGATRON, architecture)
    vars(architecture)["mixers"] = {LATENT_ATTENTION: range(3)}
    assert has_stacked_layers(MEGATRON, architecture)
