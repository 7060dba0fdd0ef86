"""LoRA adapters of PEFT, merged into the weights of a model in any format."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from averaged_models import Tensors, assert_same, values, write
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import lt_convert
from lt_convert.cli import merge_command
from lt_convert.commands import checksum_verification
from lt_shared.console import BadData, UsageError
from lt_shared.models.architecture import Architecture

LLAMA = Architecture("merged", "llama", 3, 32, 88, 4, 2, 250, 64)
GPT2 = Architecture("gpt", "gpt", 2, 32, 88, 4, 4, 250, 64)
QUERY, UP, EMBEDDING = "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj", "model.embed_tokens"
RANK = 4


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / request.param, LLAMA, 1, request.param)


def factors(model: Path, modules: list[str], seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    tensors: Tensors = {}
    for module in modules:
        rows, columns = values(model)[f"{module}.weight"].shape
        if module == EMBEDDING:
            tensors[f"{module}.lora_embedding_A"] = torch.randn(RANK, rows, generator=generator) * 0.1
            tensors[f"{module}.lora_embedding_B"] = torch.randn(columns, RANK, generator=generator) * 0.1
            continue
        tensors[f"{module}.lora_A.weight"] = torch.randn(RANK, columns, generator=generator) * 0.1
        tensors[f"{module}.lora_B.weight"] = torch.randn(rows, RANK, generator=generator) * 0.1
    return tensors


def save(directory: Path, tensors: Tensors, **config: Any) -> Path:
    directory.mkdir()
    save_file({f"base_model.model.{name}": tensor for name, tensor in tensors.items()}, directory / "adapter_model.safetensors")
    fields = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none", "base_model_name_or_path": "org/base", **config}
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    return directory


def merge(*arguments: Any) -> None:
    result = CliRunner().invoke(merge_command.merge, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, (2.0, 2.0)),
        ({"use_rslora": True}, (4.0, 4.0)),
        ({"alpha_pattern": {"layers.1.mlp.up_proj": 16}}, (2.0, 4.0)),
        # A regular expression, as in PEFT.
        ({"alpha_pattern": {".*q_proj$": 4, r"^model\.layers\.\d+\.mlp\.up_proj": 16}}, (1.0, 4.0)),
    ],
)
def test_products_are_scaled_and_added(config: dict[str, Any], scales: tuple[float, float], base: Path, tmp_path: Path) -> None:
    tensors = factors(base, [QUERY, UP])
    expected = values(base)
    for module, scale in zip((QUERY, UP), scales, strict=True):
        update = tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"] * scale
        expected[f"{module}.weight"] = (expected[f"{module}.weight"] + update).to(expected[f"{module}.weight"].dtype)
    merge(base, "--adapter", save(tmp_path / "lora", tensors, **config), "--to", "hf", "-o", tmp_path / "made")
    result = values(tmp_path / "made")
    for name, tensor in expected.items():
        torch.testing.assert_close(result[name], tensor, rtol=1e-5 if tensor.dtype == torch.float32 else 2**-7, atol=1e-6)
    unchanged = [name for name in expected if name not in (f"{QUERY}.weight", f"{UP}.weight")]
    assert_same({name: result[name] for name in unchanged}, {name: expected[name] for name in unchanged})


def test_an_embedding_and_a_module_that_is_saved_whole(base: Path, tmp_path: Path) -> None:
    tensors, dtype = factors(base, [EMBEDDING]), values(base)["lm_head.weight"].dtype
    head = torch.randn(values(base)["lm_head.weight"].shape)
    adapter = save(tmp_path / "lora", {**tensors, "lm_head.weight": head})
    merge(base, "--adapter", adapter, "--to", "hf", "-o", tmp_path / "made")
    result = values(tmp_path / "made")
    assert torch.equal(result["lm_head.weight"], head.to(dtype))
    one, other = (tensors[f"{EMBEDDING}.lora_embedding_{letter}"] for letter in "AB")
    expected = values(base)[f"{EMBEDDING}.weight"] + ((other @ one).T * 2).to(dtype)
    torch.testing.assert_close(result[f"{EMBEDDING}.weight"], expected)
    # PEFT saves an adapted embedding itself, too, under this name.
    embedding = values(base)[f"{EMBEDDING}.weight"]
    adapter = save(tmp_path / "other", {**tensors, f"{EMBEDDING}.base_layer.weight": embedding + 1})
    merge(base, "--adapter", adapter, "--to", "hf", "-o", tmp_path / "again")
    expected = (embedding + 1) + ((other @ one).T * 2).to(dtype)
    torch.testing.assert_close(values(tmp_path / "again")[f"{EMBEDDING}.weight"], expected)


@pytest.mark.parametrize("trained", [EMBEDDING, "lm_head"])
def test_a_module_of_tied_embeddings_that_is_saved_whole_leaves_the_other_as_it_is(trained: str, tmp_path: Path) -> None:
    model = write(tmp_path / "base", dataclasses.replace(LLAMA, tie_embeddings=True), 1)
    embedding = values(model)[f"{EMBEDDING}.weight"]
    expected = {f"{name}.weight": embedding for name in (EMBEDDING, "lm_head")} | {f"{trained}.weight": embedding + 1}
    adapter = save(tmp_path / "lora", {f"{trained}.weight": embedding + 1})
    merge(model, "--adapter", adapter, "--to", "hf", "-o", tmp_path / "merged")
    assert not json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    assert_same({name: loaded[name] for name in expected}, expected)
    adapter = save(tmp_path / "output", factors(write(tmp_path / "untied", LLAMA, 1), ["lm_head"]))
    with pytest.raises(BadData, match="adapts the output layer, which is the embedding of"):
        merge(model, "--adapter", adapter, "--to", "hf", "-o", tmp_path / "refused")


@pytest.mark.parametrize("fan_in_fan_out", [True, False])
@pytest.mark.parametrize(
    ("architecture", "module"), [(LLAMA, QUERY), (GPT2, "transformer.h.0.attn.c_proj"), (GPT2, "lm_head")], ids=str
)
def test_the_kind_of_a_layer_decides_on_its_transposition(
    architecture: Architecture, module: str, fan_in_fan_out: bool, tmp_path: Path
) -> None:
    """PEFT saves fan_in_fan_out of the layer that it adapted last. A square matrix fits both ways."""
    model = write(tmp_path / "base", architecture, 1)
    weight = values(model)[f"{module}.weight"]
    inner, outer = torch.randn(RANK, weight.shape[1]), torch.randn(weight.shape[0], RANK)
    is_conv1d = module.endswith("c_proj")
    pair = (outer.T, inner.T) if is_conv1d else (inner, outer)
    tensors = {f"{module}.lora_{letter}.weight": one.contiguous() for letter, one in zip("AB", pair, strict=True)}
    adapter = save(tmp_path / "lora", tensors, fan_in_fan_out=fan_in_fan_out)
    merge(model, "--adapter", adapter, "--to", "hf", "-o", tmp_path / "merged")
    torch.testing.assert_close(values(tmp_path / "merged")[f"{module}.weight"], weight + outer @ inner * 2)


def test_the_file_that_peft_wrote_until_2023(base: Path, tmp_path: Path) -> None:
    """A file of torch, which counts if there are no safetensors."""
    adapter = save(tmp_path / "lora", factors(base, [QUERY, UP]))
    merge(base, "--adapter", adapter, "--to", "hf", "-o", tmp_path / "expected")
    tensors = load_file(adapter / "adapter_model.safetensors")
    torch.save({name: tensor + 1 for name, tensor in tensors.items()}, adapter / "adapter_model.bin")
    merge(base, "--adapter", adapter, "--to", "hf", "-o", tmp_path / "both")
    torch.save(tensors, adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    merge(base, "--adapter", adapter, "--to", "hf", "-o", tmp_path / "made")
    for name in ("both", "made"):
        assert_same(values(tmp_path / name), values(tmp_path / "expected"))


def test_formats_and_several_adapters(base: Path, tmp_path: Path) -> None:
    adapters = [save(tmp_path / f"lora{seed}", factors(base, [QUERY, UP], seed)) for seed in (1, 2)]
    words = [word for adapter in adapters for word in ("--adapter", adapter)]
    merge(base, *words, "--to", "hf", "-o", tmp_path / "expected")
    merge(base, "--adapter", adapters[0], "--to", "hf", "-o", tmp_path / "first")
    merge(tmp_path / "first", "--adapter", adapters[1], "--to", "hf", "-o", tmp_path / "second")
    assert_same(values(tmp_path / "second"), values(tmp_path / "expected"))
    source = lt_convert.convert(base, tmp_path / "megatron", "megatron-dist").path
    merge(source, *words, "--to", "megatron-dist", "-o", tmp_path / "made")
    assert checksum_verification.verify(str(tmp_path / "made"))["problems"] == []
    back = lt_convert.convert(tmp_path / "made", tmp_path / "back").path
    assert_same(values(Path(back)), values(tmp_path / "expected"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"alpha_pattern": {"(a+)+b": 4}}, "too many repetitions"),
        ({"alpha_pattern": {"(a": 4}}, "not a regular expression"),
        ({"r": "four"}, "r or lora_alpha is no number"),
    ],
)
def test_other_adapters_are_refused(change: dict[str, Any], message: str, base: Path, tmp_path: Path) -> None:
    adapter = save(tmp_path / "lora", factors(base, [QUERY]), **change)
    with pytest.raises(BadData, match=message):
        merge(base, "--adapter", adapter, "--to", "hf", "-o", tmp_path / "made")


def test_an_adapter_of_another_base_names_what_and_where(base: Path, tmp_path: Path) -> None:
    absent = {f"model.layers.7.mlp.up_proj.lora_{letter}.weight": torch.ones(4, 4) for letter in "AB"}
    wide = {f"{QUERY}.lora_A.weight": torch.ones(RANK, 64), f"{QUERY}.lora_B.weight": torch.ones(32, RANK)}
    torn = {f"{QUERY}.lora_A.weight": torch.ones(RANK, 32), f"{QUERY}.lora_B.weight": torch.ones(32, 2)}
    for number, (tensors, message) in enumerate(
        (
            (absent, rf"adapts model.layers.7.mlp.up_proj.weight, which {base} does not have"),
            (wide, rf"{QUERY}.weight is \[32, 64\], in {base} \[32, 32\]"),
            (torn, rf"{QUERY}: lora_A \[4, 32\], lora_B \[32, 2\]: not two matrices of one rank"),
            ({f"{QUERY}.lora_magnitude_vector": torch.ones(4)}, "not a tensor of plain LoRA"),
        )
    ):
        with pytest.raises(BadData, match=message) as caught:
            merge(base, "--adapter", save(tmp_path / str(number), tensors), "--to", "hf", "-o", tmp_path / "made")
        assert "org/base" in str(caught.value.hint) or number > 1
    with pytest.raises(BadData, match="not an adapter of PEFT"):
        merge(base, "--adapter", base, "--to", "hf", "-o", tmp_path / "made")
    with pytest.raises(UsageError, match="--adapter is for one model"):
        merge(base, base, "--adapter", tmp_path / "0", "--to", "hf", "-o", tmp_path / "made")


def test_files_beside_an_adapter_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write(tmp_path / "base", LLAMA, 1)
    (model / "chat_template.jinja").write_text("base")
    (model / "LICENSE").write_text("licence")
    adapter = save(tmp_path / "lora", factors(model, [QUERY]))
    (adapter / "LICENSE").write_text("licence")
    for name in ("chat_template.jinja", "training_args.bin"):
        (adapter / name).write_text("tuned")
    lt_convert.merge([model], tmp_path / "made", "hf", adapters=[adapter])
    assert (tmp_path / "made" / "chat_template.jinja").read_text() == "base"
    lost = "chat_template.jinja, training_args.bin (2 in all)"
    assert f"warning: {adapter}: not taken along: {lost}: the files are those of {model}\n" in capsys.readouterr().err
