"""Merges: the exact average, of any formats to any format, with all that a conversion promises."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import s3_server
import torch
from averaged_models import WEIGHTS, assert_same, average, values, write
from safetensors.torch import load_file, save_file

import lt_convert
from lt_convert.commands import checkpoint_comparison, checksum_verification, inspection
from lt_convert.containers import dcp
from lt_convert.engine.receipt import ConversionRecord
from lt_convert.formats import huggingface
from lt_convert.formats.huggingface import safetensors_files
from lt_convert.tensors import blocks
from lt_shared.console import BadData, CannotCreate, UsageError
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.models.architecture import Architecture

FORMATS = ("hf", "megatron-dist", "megatron-legacy", "torchtitan")
DTYPES = ("float32", "bfloat16", "float16")
LLAMA = Architecture("merged", "llama", 3, 32, 88, 4, 2, 250, 64)
FAMILIES = {
    "tied llama": dataclasses.replace(LLAMA, tie_embeddings=True),
    "qwen2": dataclasses.replace(LLAMA, add_qkv_bias=True, tie_embeddings=True),
    "qwen3": dataclasses.replace(LLAMA, qk_layernorm=True, kv_channels=16),
    "mixtral": dataclasses.replace(LLAMA, num_experts=4, ffn_hidden_size=40),
    "qwen3_moe": dataclasses.replace(LLAMA, qk_layernorm=True, kv_channels=16, num_experts=4, ffn_hidden_size=40),
    "gpt2": dataclasses.replace(LLAMA, family="gpt", num_query_groups=4, tie_embeddings=True),
}


@pytest.fixture(scope="module", params=DTYPES)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp(request.param)
    return [write(root / f"hf{seed}", LLAMA, seed, request.param) for seed in (10, 20, 30)]


def as_format(model: Path, to: str, directory: Path) -> Path:
    """The model in another format, as a run trained it: a Megatron legacy one on 6 ranks."""
    if to == "hf":
        return model
    sizes: dict[str, Any] = {"target_tensor_parallel_size": 2, "target_pipeline_parallel_size": 3} if "legacy" in to else {}
    return Path(lt_convert.convert(model, directory / f"{model.name}-{to}", to, **sizes).path)


@pytest.mark.parametrize("to", FORMATS)
def test_sources_of_different_formats_make_the_exact_average(to: str, models: list[Path], tmp_path: Path) -> None:
    formats = {"hf": FORMATS[1:], "torchtitan": FORMATS[:3], "megatron-dist": FORMATS[::-1][:3], "megatron-legacy": FORMATS[:3]}
    inputs = [as_format(model, name, tmp_path) for model, name in zip(models, formats[to], strict=True)]
    merged = lt_convert.merge(dict(zip(inputs, WEIGHTS, strict=True)), tmp_path / "merged", to)
    directory = Path(merged.path) if to == "hf" else Path(lt_convert.convert(merged.path, tmp_path / "back").path)
    assert_same(values(directory), average(models, WEIGHTS))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("to", ["hf", "megatron-dist"])
def test_every_family(name: str, to: str, tmp_path: Path) -> None:
    models = [write(tmp_path / f"hf{seed}", FAMILIES[name], seed, "bfloat16") for seed in (10, 20, 30)]
    inputs = [as_format(model, form, tmp_path) for model, form in zip(models, FORMATS[:3], strict=True)]
    merged = lt_convert.merge(dict(zip(inputs, WEIGHTS, strict=True)), tmp_path / "merged", to)
    directory = Path(merged.path) if to == "hf" else Path(lt_convert.convert(merged.path, tmp_path / "back").path)
    assert_same(values(directory), average(models, WEIGHTS))


def test_plain_formulas_agree(models: list[Path], tmp_path: Path) -> None:
    """The mean of torch and NumPy, OLMo-core's sum divided by the number, and Megatron-LM's accumulation in fp32."""
    merged_values = values(Path(lt_convert.merge(models, tmp_path / "merged").path))
    loaded = [load_file(model / "model.safetensors") for model in models]
    for name, merged_value in merged_values.items():
        terms = [model[name].float() for model in loaded]
        accumulated = torch.zeros_like(terms[0])
        for term in terms:
            accumulated.add_(term, alpha=1 / 3)
        formulas = [
            torch.stack(terms).mean(0),
            torch.from_numpy(numpy.mean([term.numpy() for term in terms], axis=0)),
            sum(terms[1:], terms[0]) / 3,
            accumulated,
        ]
        spacing = torch.finfo(merged_value.dtype).eps * torch.stack(terms).abs().amax(0)
        for formula in formulas:
            assert bool(((formula.to(merged_value.dtype).double() - merged_value.double()).abs() <= spacing).all())
        if merged_value.dtype != torch.float32:
            # The sums are exact there, and so are the ties.
            assert torch.equal(formulas[0].to(merged_value.dtype), merged_value)


def test_an_average_of_equal_checkpoints_is_that_checkpoint(models: list[Path], tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(models[0], tmp_path / f"copy{number}")) for number in range(3)]
    merged = lt_convert.merge(dict(zip(copies, (0.7, 0.1, 0.2), strict=True)), tmp_path / "merged")
    assert_same(values(Path(merged.path)), values(models[0]))


def test_the_order_of_the_sources_does_not_matter(models: list[Path], tmp_path: Path) -> None:
    pairs = list(zip(models, WEIGHTS, strict=True))
    one = lt_convert.merge(dict(pairs), tmp_path / "one")
    other = lt_convert.merge(dict(reversed(pairs)), tmp_path / "other")
    first, second = values(Path(one.path)), values(Path(other.path))
    if first["model.norm.weight"].dtype != torch.float32:
        assert_same(first, second)
    for name, value in first.items():
        # An exact tie in fp32 is rounded to either side.
        assert torch.allclose(value, second[name], rtol=2**-23, atol=0), name


@pytest.fixture
def run(models: list[Path], tmp_path: Path) -> Path:
    """A run with the checkpoints 10, 20 and 30."""
    for model in models:
        merged = lt_convert.convert(model, tmp_path / "made" / model.name, "megatron-dist").path
        iteration = int(model.name.removeprefix("hf"))
        shutil.copytree(merged, checkpoint_layout.iteration_directory(tmp_path / "run", iteration))
    checkpoint_layout.write_tracker(tmp_path / "run", 30)
    return tmp_path / "run"


@pytest.mark.parametrize("schedule", [None, "linear", "minus-sqrt", "ema=0.6"])
def test_the_last_checkpoints_of_a_run(schedule: str | None, run: Path, models: list[Path], tmp_path: Path) -> None:
    merged = lt_convert.merge(run, tmp_path / "merged", last=2, weights=schedule)
    weights = {"minus-sqrt": (0.5**0.5, 1 - 0.5**0.5), "ema=0.6": (0.6, 0.4)}.get(str(schedule), (0.5, 0.5))
    assert_same(values(Path(merged.path)), average(models[1:], weights))
    assert (merged.iteration, merged.loss, merged.format) == (30, None, "hf")


def test_where_it_came_from(run: Path, tmp_path: Path) -> None:
    merged = lt_convert.merge(run, tmp_path / "merged", to="megatron-dist", last=3)
    record = ConversionRecord.read(str(tmp_path / "merged"))
    assert record is not None
    expected = [{"path": f"{run}/iter_{iteration:07d}", "weight": 1 / 3} for iteration in (10, 20, 30)]
    assert (record.merged, record.iteration) == (expected, 30)
    assert {Path(str(one["path"])).parts[-2] for one in record.source} == {f"iter_{iteration:07d}" for iteration in (10, 20, 30)}
    inspected = inspection.inspect(merged.path)
    assert (inspected["merged"], inspected["iteration"], inspected["optimizer"]) == (expected, 30, None)
    # A training that starts from the release of a merge begins at 0.
    assert RunRecord.read(Path(merged.path)).iteration == 0
    assert checksum_verification.verify(str(tmp_path / "merged"))["problems"] == []


def test_same_merge_again_is_up_to_date(models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = lt_convert.merge({models[0]: 1, models[1]: 3}, tmp_path / "merged")
    stamp = (tmp_path / "merged" / "model.safetensors").stat().st_mtime_ns
    capsys.readouterr()
    assert lt_convert.merge({models[0]: 0.25, models[1]: 0.75}, tmp_path / "merged") == first
    assert capsys.readouterr().err == f"lt: {tmp_path}/merged: up to date\n"
    assert (tmp_path / "merged" / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(CannotCreate, match="not empty"):
        lt_convert.merge({models[0]: 0.5, models[1]: 0.5}, tmp_path / "merged")
    lt_convert.merge({models[0]: 0.5, models[1]: 0.5}, tmp_path / "merged", force=True)
    assert_same(values(tmp_path / "merged"), average(models[:2], (0.5, 0.5)))


def test_weights_that_do_not_sum_to_one_are_told(models: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lt_convert.merge({models[0]: 3, models[1]: -1}, tmp_path / "merged")
    warnings = capsys.readouterr().err
    assert "the weights do not sum to 1: they are divided by their sum: 1.5, -0.5" in warnings
    assert "a weight is negative" in warnings
    assert_same(values(tmp_path / "merged"), average(models[:2], (1.5, -0.5)))
    lt_convert.merge({models[0]: 0.7, models[1]: 0.3}, tmp_path / "other")
    assert "sum" not in capsys.readouterr().err


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_dtype(dtype: Any, tmp_path: Path) -> None:
    models = [write(tmp_path / "one", LLAMA, 1), write(tmp_path / "two", LLAMA, 2, "bfloat16")]
    with pytest.raises(UsageError, match=r"model\.embed_tokens\.weight is float32, in .*two bfloat16"):
        lt_convert.merge(models, tmp_path / "merged")
    lt_convert.merge(models, tmp_path / "merged", dtype=dtype)
    one, other = (load_file(model / "model.safetensors") for model in models)
    expected = {name: ((one[name].double() + other[name].double()) / 2).float().to(getattr(torch, dtype)) for name in one}
    assert_same(values(tmp_path / "merged"), expected)
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == dtype


def test_a_value_that_overflows_is_refused(tmp_path: Path) -> None:
    models = [write(tmp_path / "place" / name, LLAMA, seed) for seed, name in enumerate(("one", "two"))]
    for model in models:
        tensors = load_file(model / "model.safetensors")
        tensors["model.norm.weight"].fill_(1e6)
        save_file(tensors, model / "model.safetensors")
    with pytest.raises(BadData, match=r"model\.norm\.weight: has values too large for float16"):
        lt_convert.merge(models, tmp_path / "place" / "merged", dtype="float16")
    assert sorted(path.name for path in (tmp_path / "place").iterdir()) == ["one", "two"]


OTHERS = {
    "layers": dataclasses.replace(LLAMA, num_layers=2),
    "rope": dataclasses.replace(LLAMA, rotary_base=50000.0),
    "vocabulary": dataclasses.replace(LLAMA, vocab_size=249),
    "family": FAMILIES["gpt2"],
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_is_refused(name: str, tmp_path: Path) -> None:
    models = [write(tmp_path / "one", LLAMA, 1), write(tmp_path / "two", OTHERS[name], 2)]
    with pytest.raises(BadData, match=r"one: \w+ is ") as caught:
        lt_convert.merge(models, tmp_path / "merged")
    is_by_token = name == "vocabulary"
    hint = (
        "merge them by token, as --method linear --tokenizer-source union"
        if is_by_token
        else "only checkpoints of one model can be merged"
    )
    assert caught.value.hint == hint


def test_numbers_that_are_not_floating_point_are_refused(tmp_path: Path) -> None:
    models = [write(tmp_path / name, LLAMA, seed) for seed, name in enumerate(("one", "two"))]
    for model in models:
        tensors = load_file(model / "model.safetensors")
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
        save_file(tensors, model / "model.safetensors")
    with pytest.raises(BadData, match=r"one: model\.norm\.weight is stored as float8_e4m3fn"):
        lt_convert.merge(models, tmp_path / "merged", dtype="bfloat16")


@pytest.mark.parametrize("to", FORMATS)
def test_quantized_models_are_averaged_as_what_they_stand_for(to: str, tmp_path: Path) -> None:
    """Block fp8 and bf16: the products of fp8 and scales, which are fp32, are rounded once, with the average."""
    architecture = dataclasses.replace(LLAMA, hidden_size=256, ffn_hidden_size=384)
    models = [write(tmp_path / f"hf{seed}", architecture, seed, "bfloat16") for seed in (10, 20)]
    quantized = Path(lt_convert.convert(models[0], tmp_path / "fp8", quantize="fp8-block").path)
    stored, other = load_file(quantized / "model.safetensors"), load_file(models[1] / "model.safetensors")
    expected = {}
    for name, value in other.items():
        weight = stored[name].float()
        if f"{name}_scale_inv" in stored:
            weight *= stored[f"{name}_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
        expected[name] = (0.7 * weight.double() + 0.3 * value.double()).float().bfloat16()
    assert len(stored) > len(other)
    merged = lt_convert.merge({quantized: 0.7, models[1]: 0.3}, tmp_path / "merged", to).path
    directory = Path(merged) if to == "hf" else Path(lt_convert.convert(merged, tmp_path / "back").path)
    assert_same(values(directory), expected)
    assert "quantization_config" not in json.loads((directory / "config.json").read_text())


def test_what_cannot_be_merged(models: list[Path], run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one checkpoint, and a merge takes at least two"):
        lt_convert.merge([models[0]], tmp_path / "merged")
    with pytest.raises(UsageError, match="is named twice"):
        lt_convert.merge([run, run / "iter_0000030"], tmp_path / "merged")
    with pytest.raises(UsageError, match=r"iter_0000030 is of iteration 30, and .*iter_0000010 after it of 10"):
        lt_convert.merge([run, run / "iter_0000010"], tmp_path / "merged", weights="minus-sqrt")
    with pytest.raises(UsageError, match="holds the source"):
        lt_convert.merge([run / "iter_0000010", run / "iter_0000020"], run, force=True)
    assert not (tmp_path / "merged").exists()


def test_padding_of_different_sizes_is_left_out(models: list[Path], tmp_path: Path) -> None:
    """A model whose vocabulary has 384 rows, and one of 256."""
    large = Path(shutil.copytree(models[0], tmp_path / "large"))
    rows = torch.ones(134, 32, dtype=load_file(large / "model.safetensors")["lm_head.weight"].dtype)
    names = ("padding.model.embed_tokens.weight", "padding.lm_head.weight")
    save_file({name: rows.clone() for name in names}, large / huggingface.PADDING_FILE)
    inputs = [as_format(model, "megatron-dist", tmp_path) for model in (large, models[1])]
    assert [inspection.inspect(str(one))["padded_vocab_size"] for one in inputs] == [384, 256]
    for number, sources in enumerate((inputs, inputs[::-1])):
        merged = lt_convert.merge(sources, tmp_path / f"merged{number}", "megatron-dist").path
        assert inspection.inspect(merged)["padded_vocab_size"] == (256, 384)[number]
        back = Path(lt_convert.convert(merged, tmp_path / f"back{number}").path)
        assert_same(values(back), average(models[:2], (0.5, 0.5)))
        assert not any(value.any() for value in load_file(back / huggingface.PADDING_FILE).values())


def test_padding_of_one_size_is_averaged(run: Path, tmp_path: Path) -> None:
    merged = lt_convert.merge(run, tmp_path / "merged", last=2)
    assert checkpoint_comparison.compare(merged.path, merged.path)["same"]
    assert (tmp_path / "merged" / huggingface.PADDING_FILE).is_file()
    names = sorted(path.name for path in (tmp_path / "merged").iterdir())
    assert [name for name in names if name.endswith((".safetensors", ".bin", ".pt", ".pth"))] == ["model.safetensors"]


@pytest.mark.parametrize("to", FORMATS)
def test_large_models_are_cut_alike(to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [write(tmp_path / f"hf{seed}", FAMILIES["qwen3_moe"], seed, "bfloat16") for seed in (10, 20)]
    inputs = [as_format(models[0], "megatron-dist", tmp_path), as_format(models[1], "torchtitan", tmp_path)]
    monkeypatch.setattr(dcp, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(dcp, "FILE_BYTES", 20_000)
    monkeypatch.setattr(safetensors_files, "SHARD_BYTES", 30_000)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(blocks, "TRANSPOSED_BLOCK_BYTES", 2000)
    monkeypatch.setattr(blocks, "MATRIX_BYTES", 4000)
    monkeypatch.setattr(blocks, "OF_MATRIX_BYTES", 700)
    monkeypatch.setattr(blocks, "SPAN_BYTES", 500)
    merged = lt_convert.merge(inputs, tmp_path / "merged", to).path
    assert len([path for path in (tmp_path / "merged").rglob("*") if path.stat().st_size > 5000]) > (
        2 if to != "megatron-legacy" else 0
    )
    back = merged if to == "hf" else lt_convert.convert(merged, tmp_path / "back").path
    assert_same(values(Path(back)), average(models, (0.5, 0.5)))


def test_a_damaged_source_is_found(run: Path, tmp_path: Path) -> None:
    path = next((run / "iter_0000020").glob("*.distcp"))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadData, match=r"iter_0000020/.*not as it was written"):
        lt_convert.merge(run, tmp_path / "merged", last=3)
    assert not (tmp_path / "merged").exists()
    assert Path(lt_convert.merge(run, tmp_path / "merged", last=3, no_verify=True).path).is_dir()


def test_on_s3(bucket: str, tmp_path: Path) -> None:
    models = [write(tmp_path / f"hf{seed}", LLAMA, seed, "bfloat16") for seed in (10, 20)]
    remote = s3_server.upload(models[0], f"{bucket}/hf")
    merged = lt_convert.merge({remote: 0.7, models[1]: 0.3}, f"{bucket}/merged", "megatron-dist").path
    assert merged == f"{bucket}/merged/release"
    assert_same(values(Path(lt_convert.convert(merged, tmp_path / "back").path)), average(models, (0.7, 0.3)))
