"""Merges by mergekit's methods, of any formats to any format, from the command line and from mergekit's files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from averaged_models import assert_same, values, write
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

import lt_convert
from lt_convert.cli import merge_command
from lt_convert.commands import checksum_verification
from lt_shared.console import BadConfig, BadData, CannotCreate, UsageError
from lt_shared.models.architecture import Architecture

LLAMA = Architecture("merged", "llama", 3, 32, 88, 4, 2, 250, 64)
FORMATS = ("megatron-dist", "torchtitan", "hf")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A base and two models that were trained from it."""
    root = tmp_path_factory.mktemp("models")
    return [write(root / name, LLAMA, seed, "bfloat16") for name, seed in (("base", 1), ("one", 2), ("two", 3))]


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(merge_command.merge, [str(word) for word in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(error: type[Exception], *arguments: Any) -> str:
    with pytest.raises(error) as caught:
        run(*arguments)
    return str(caught.value)


def merge(directory: Path, *arguments: Any) -> dict[str, torch.Tensor]:
    run(*arguments, "--to", "hf", "-o", directory)
    return values(directory)


METHODS: dict[str, list[str]] = {
    "linear": ["-p", "weight=[0.2, 0.9]"],
    "slerp": ["-p", "t=[{filter: mlp, value: [0, 0.7, 1]}, {value: 0.4}]"],
    "task_arithmetic": ["-p", "weight=0.4", "-p", "lambda=0.9"],
    "ties": ["-p", "weight=0.4", "-p", "density=[0.2, 0.6]"],
    "dare_linear": ["-p", "weight=0.5", "-p", "density=0.5"],
    "dare_ties": ["-p", "weight=0.5", "-p", "density=0.5", "--seed", "7"],
}


@pytest.mark.parametrize("method", METHODS)
def test_formats_of_sources_and_result_do_not_change_a_bit(method: str, models: list[Path], tmp_path: Path) -> None:
    base, *others = models
    has_base = method not in ("linear", "slerp")
    inputs = [*others, *(["--base", base] if has_base else []), "--method", method, *METHODS[method]]
    expected = merge(tmp_path / "expected", *inputs)
    assert not torch.equal(expected["lm_head.weight"], values(others[0])["lm_head.weight"])
    converted = [
        Path(lt_convert.convert(model, tmp_path / f"{to}-{model.name}", to).path) if to != "hf" else model
        for model, to in zip(models, FORMATS, strict=True)
    ]
    inputs = [*converted[1:], *(["--base", converted[0]] if has_base else []), "--method", method, *METHODS[method]]
    for to in ("megatron-dist", "megatron-legacy"):
        parallel = ["--target-tensor-parallel-size", 2, "--target-pipeline-parallel-size", 3] if "legacy" in to else []
        run(*inputs, "--to", to, "-o", tmp_path / to, *parallel)
        assert checksum_verification.verify(str(tmp_path / to))["problems"] == []
        assert_same(values(Path(lt_convert.convert(tmp_path / to, tmp_path / f"{to}-back").path)), expected)


def test_layers_and_filters_have_values_of_their_own(models: list[Path], tmp_path: Path) -> None:
    one, two = (values(model) for model in models[1:])
    result = merge(tmp_path / "made", *models[1:], "--method", "slerp", *METHODS["slerp"])
    up = "model.layers.{}.mlp.up_proj.weight"
    assert torch.equal(result[up.format(0)], one[up.format(0)])
    assert torch.equal(result[up.format(2)], two[up.format(2)])
    assert not torch.equal(result[up.format(1)], one[up.format(1)])


def test_a_file_of_mergekit_is_the_same_merge(models: list[Path], tmp_path: Path) -> None:
    base, one, two = map(str, models)
    document = {
        "merge_method": "ties",
        "base_model": base,
        "models": [
            {"model": base},
            {"model": one, "parameters": {"weight": 0.6, "density": 0.5}},
            {"model": two, "parameters": {"weight": 0.4, "density": [0.1, 0.5]}},
        ],
        "parameters": {"normalize": False, "int8_mask": True},
        "dtype": "bfloat16",
        "out_dtype": "float32",
    }
    (tmp_path / "merge.yaml").write_text(yaml.safe_dump(document))
    result = merge(tmp_path / "made", "--config", tmp_path / "merge.yaml")
    assert {tensor.dtype for tensor in result.values()} == {torch.float32}
    record = json.loads(run("--config", tmp_path / "merge.yaml", "--to", "hf", "-o", tmp_path / "x", "--dry-run", "--json"))
    assert [source.get("weight") for source in record["sources"]] == [None, 0.6, 0.4]
    assert {tensor["operation"] for tensor in record["tensors"]} == {"ties of 3"}
    # In the end, the values of a merge of bfloat16 models.
    same = [f"{one}=0.6", f"{two}=0.4", "--base", base, "--method", "ties", "-p", "density=0.5", "-p", "normalize=false"]
    first_only = merge(tmp_path / "words", *same)
    name = "model.layers.2.mlp.up_proj.weight"
    assert torch.equal(result[name].bfloat16(), first_only[name])


def test_slices_of_every_layer(models: list[Path], tmp_path: Path) -> None:
    sources = [{"model": str(model), "layer_range": [0, 3]} for model in models[1:]]
    document: dict[str, Any] = {
        "merge_method": "slerp",
        "base_model": str(models[1]),
        "slices": [{"sources": sources}],
        "parameters": {"t": [{"filter": "mlp", "value": [0, 0.7, 1]}, {"value": 0.4}]},
    }
    (tmp_path / "merge.yaml").write_text(yaml.safe_dump(document))
    assert_same(
        merge(tmp_path / "made", "--config", tmp_path / "merge.yaml"),
        merge(tmp_path / "words", *models[1:], "--method", "slerp", *METHODS["slerp"]),
    )
    document["slices"] = [{"sources": [{**source, "layer_range": [0, 2]} for source in sources]}]
    (tmp_path / "merge.yaml").write_text(yaml.safe_dump(document))
    output = refused(UsageError, "--config", tmp_path / "merge.yaml", "--to", "hf", "-o", tmp_path / "x")
    assert "takes 2 layers" in output and "has 3" in output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merge_method": "della"}, "the merge method della is unknown"),
        ({"modules": {}}, "modules: is not read here"),
        ({"base_model": None}, "base_model: missing"),
        ({"models": [{"model": "a"}, {"model": "b", "weight": 1}]}, "not a model with its parameters"),
        ({"parameters": {"epsilon": 1}}, "ties has no parameter epsilon"),
        ({"models": [{"model": "a", "parameters": {"normalize": True}}]}, "normalize of ties is not one of a model"),
        ({"dtype": "int8"}, "dtype: int8"),
        ({"models": None, "slices": [{"sources": [{"model": "a", "layer_range": [2, 4]}]}]}, "layer_range: [2, 4]"),
    ],
)
def test_what_a_file_cannot_have(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    document = {"merge_method": "ties", "base_model": "base", "models": [{"model": "a"}], **change}
    (tmp_path / "merge.yaml").write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    output = refused(BadConfig, "--config", tmp_path / "merge.yaml", "--to", "hf", "-o", tmp_path / "x")
    assert output.startswith(str(tmp_path / "merge.yaml")) and message in output


def test_words_that_do_not_fit(models: list[Path], tmp_path: Path) -> None:
    base, one, two = models
    end = ["--to", "hf", "-o", tmp_path / "x"]
    for words, message in (
        ([one, two, "--method", "ties", *end], "needs a base model"),
        ([one, two, "--method", "linear", "--base", base, *end], "has no base model"),
        ([f"{one}=1", two, "--method", "slerp", *end], "has no weights"),
        ([one, two, "--method", "slerp", *end], "the parameter t has no value"),
        ([one, two, base, "--method", "slerp", "--base", base, "-p", "t=1", *end], "merges 2 models"),
        ([one, two, "-p", "t=1", *end], "for merges by a method"),
        ([one, "--config", "merge.yaml", *end], "names models, method and parameters"),
        (end, "no checkpoint to merge"),
        ([f"{one}=1", f"{two}=-1", "--method", "linear", *end], "the weights sum to 0"),
    ):
        assert message in refused(UsageError, *words)


def test_up_to_date_only_with_the_same_recipe(models: list[Path], tmp_path: Path) -> None:
    words = [*models[1:], "--method", "slerp", "--to", "hf", "-o", tmp_path / "made"]
    run(*words, "-p", "t=0.5")
    written = (tmp_path / "made" / "model.safetensors").stat()
    run(*words, "-p", "t=0.5")
    assert (tmp_path / "made" / "model.safetensors").stat() == written
    refused(CannotCreate, *words, "-p", "t=0.4")
    assert "slerp" in (tmp_path / "made" / "lt-convert.json").read_text()
    assert lt_convert.inspect(tmp_path / "made")["merged"] == [{"path": str(model)} for model in models[1:]]


def test_another_architecture_is_named(models: list[Path], tmp_path: Path) -> None:
    other = write(tmp_path / "other", Architecture("other", "llama", 2, 32, 88, 4, 2, 250, 64), 1, "bfloat16")
    output = refused(BadData, models[1], other, "--method", "slerp", "-p", "t=1", "--to", "hf", "-o", tmp_path / "x")
    assert output.startswith(f"{other}: num_layers is 2")
    tensors = load_file(models[2] / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].half()
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / "config.json").write_bytes((models[2] / "config.json").read_bytes())
    save_file(tensors, tmp_path / "mixed" / "model.safetensors")
    output = refused(
        UsageError, models[1], tmp_path / "mixed", "--method", "slerp", "-p", "t=1", "--to", "hf", "-o", tmp_path / "x"
    )
    assert "model.norm.weight is float16" in output
