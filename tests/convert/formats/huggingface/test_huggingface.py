"""Hugging Face directories: safetensors against the library that defines them, transformers loads results, damage is refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.engine.output_writer import contents
from lt_convert.formats import huggingface
from lt_convert.formats.huggingface import safetensors_files
from lt_convert.tensors import blocks
from lt_convert.tensors.output_files import OutputFile
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData
from lt_shared.models.huggingface import from_config

TENSORS = {
    "b": torch.randn(7, 3),
    "a": torch.randn(5).to(torch.bfloat16),
    "c": torch.randn(2, 3, 4).to(torch.float16),
    "empty": torch.zeros(0, 4),
}


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    return Path(conversion.convert(Request(str(source), to, str(destination), **options)).path)


def test_files_of_the_library_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors", {"format": "pt"})
    with Files() as files:
        found = huggingface.read_model(str(tmp_path), files)
        for name, tensor in TENSORS.items():
            assert (found[name].dtype, found[name].shape) == (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            assert blocks.read(found[name], files).tobytes() == tensor.contiguous().view(torch.uint8).numpy().tobytes()


def write(directory: Path, outputs: list[OutputFile]) -> None:
    directory.mkdir()
    with Files() as files:
        reader = blocks.TensorReader(files)
        for output in outputs:
            data = b"".join(bytes(block) for segment in output.segments for block in contents(segment, reader))
            assert len(data) == output.size_bytes
            (directory / output.name).write_bytes(data)


@pytest.mark.parametrize(("shard_bytes", "count"), [(1, 4), (100, 2), (10**9, 1)])
def test_the_library_reads_what_is_written(shard_bytes: int, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_files, "SHARD_BYTES", shard_bytes)
    save_file(TENSORS, tmp_path / "model.safetensors")
    with Files() as files:
        write(tmp_path / "out", huggingface.model_files(huggingface.read_model(str(tmp_path), files)))
        again = huggingface.read_model(str(tmp_path / "out"), files)
        assert {name: tensor.shape for name, tensor in again.items()} == {name: tuple(t.shape) for name, t in TENSORS.items()}
    found: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        found |= load_file(path)
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())
    assert (tmp_path / "out" / "model.safetensors.index.json").exists() == (count > 1)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == count


def header(content: object) -> bytes:
    encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(encoded).to_bytes(8, "little") + encoded


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file"),
        (b"\xff" * 8, "cut off inside its header"),
        (b"\xff" * 8 + bytes(100), "cut off inside its header"),
        (header(b"junk"), "malformed"),
        (header(b"[" * 100_000), "malformed"),
        (header([1]), "malformed"),
        (header({"t": 1}), "malformed"),
        (header({"t": {"dtype": "F32"}}), "malformed"),
        (header({"t": ENTRY | {"data_offsets": [0]}}), "malformed"),
        (header({"t": ENTRY | {"dtype": []}}), "malformed"),
        (header({"t": ENTRY}), r"bytes, its header says"),
        (header({"t": ENTRY}) + bytes(5), r"bytes, its header says"),
        (header({"t": ENTRY | {"shape": [2]}}) + bytes(4), "do not fit its shape"),
        (header({"t": ENTRY | {"shape": [1 << 62, 1 << 62]}}) + bytes(4), "do not fit its shape"),
        (header({"t": ENTRY | {"shape": [1 << 31, 1 << 33], "data_offsets": [0, 1 << 66]}}) + bytes(4), "its header says"),
        (header({"t": ENTRY | {"shape": [-1, -1]}}) + bytes(4), "not a natural number"),
        (header({"t": ENTRY | {"shape": [1.0]}}) + bytes(4), "not a natural number"),
        (header({"t": ENTRY | {"dtype": "I64", "data_offsets": [0, 8]}}) + bytes(8), "stored as I64"),
        (header({"t": ENTRY | {"data_offsets": [-4, 0]}}) + bytes(4), "not a natural number"),
        (header({"t": ENTRY, "u": ENTRY}) + bytes(4), "overlaps another tensor"),
        (header({"t": ENTRY, "u": ENTRY | {"data_offsets": [8, 12]}}) + bytes(12), "or there is a gap"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with Files() as files, pytest.raises(BadData, match=message):
        huggingface.read_model(str(tmp_path), files)


def test_damaged_shards_are_refused(models: dict[str, Path], tmp_path: Path) -> None:
    def refuse(message: str) -> None:
        with Files() as files, pytest.raises(BadData, match=message):
            huggingface.read_model(str(place), files)

    place = Path(shutil.copytree(models["sharded"], tmp_path / "sharded"))
    shards = sorted(place.glob("*.safetensors"))
    shutil.copy(shards[0], place / "kept")
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    refuse("its header says")
    shards[0].unlink()
    refuse("missing")
    shutil.copy(shards[1], shards[0])
    refuse("in another shard too")
    save_file({"other": torch.zeros(1)}, shards[0])
    refuse("which the index promises")
    index = place / "model.safetensors.index.json"
    for elsewhere in ("../a.safetensors", "/etc/passwd", "..", "a/b.safetensors", "a\0b"):
        index.write_text(json.dumps({"weight_map": {"a": elsewhere}}))
        refuse("outside the directory")
    for malformed in ("{}", "", "[]", '{"weight_map": {"a": 1}}', '{"weight_map": [1]}', "[" * 100_000):
        index.write_text(malformed)
        refuse("not an index")
    index.unlink()
    shards[0].unlink()
    refuse("shards without a model.safetensors.index.json, and number 1 of")
    for path in shards[1:]:
        path.unlink()
    refuse("model.safetensors: missing")


def test_a_single_file_beside_an_index_of_others_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    """transformers would load the single file."""
    place = Path(shutil.copytree(models["sharded"], tmp_path / "both"))
    shutil.copy(models["grouped"] / "model.safetensors", place)
    with Files() as files, pytest.raises(BadData, match=r"both: has a model\.safetensors and a model\.safetensors\.index\.json"):
        huggingface.read_model(str(place), files)
    names = dict.fromkeys(load_file(place / "model.safetensors"), "model.safetensors")
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with Files() as files:
        assert huggingface.read_model(str(place), files).keys() == names.keys()


@pytest.fixture
def hf(models: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(models["scaled"], tmp_path / "place" / "model"))


def refuse(hf: Path) -> str:
    with pytest.raises(BadData) as caught:
        convert(hf, "megatron-dist", hf.parent / "run")
    assert sorted(path.name for path in hf.parent.iterdir()) == [hf.name]
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "bloom"}, "model type 'bloom'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_size": "wide"}, "config.json"),
        ({"hidden_size": 1 << 30}, "the configuration says"),
        ({"hidden_size": 1 << 62}, "hidden_size is 4611686018427387904"),
        ({"quantization_config": {"quant_method": "fp8"}}, "config.json: model: is quantized with fp8 without"),
        ({"num_hidden_layers": -1}, "config.json"),
        ({"num_hidden_layers": 4}, "missing model.layers.3."),
        ({"num_hidden_layers": 2}, "this model has no model.layers.2."),
        ({"vocab_size": 255}, "the configuration says"),
        ({"tie_word_embeddings": True}, "differs from"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope scaling type 'dynamic'"),
    ],
)
def test_configuration_of_another_model(hf: Path, change: dict[str, Any], message: str) -> None:
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps(config | {"rope_scaling": None} | change))
    assert message in refuse(hf)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2.0, "high_freq_factor": 4.0},
            "Megatron has constants for every",
        ),
        ({"rope_type": "linear", "factor": 2.0}, "Megatron has constants for every"),
        ({"rope_type": "default", "rope_theta": 10000.5}, "rotary base of 10000.5: Megatron's is a whole number"),
    ],
)
def test_a_rope_that_megatron_cannot_compute(
    hf: Path, rope: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """lt-train can: the format that it reads is written with a warning, and comes back the same; the other is not written."""
    config = json.loads((hf / "config.json").read_text()) | {"rope_scaling": None, "rope_theta": None}
    config["rope_parameters"] = {"rope_theta": 10000.0, "original_max_position_embeddings": 64} | rope
    (hf / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadData, match=message):
        convert(hf, "megatron-legacy", hf.parent / "legacy")
    convert(hf, "megatron-dist", hf.parent / "run")
    assert message in capsys.readouterr().err
    convert(hf.parent / "run", "hf", hf.parent / "back")
    back = json.loads((hf.parent / "back/config.json").read_text())
    assert from_config(back, "model") == from_config(config, "model")


@pytest.mark.parametrize("content", ["", "[1]", "junk", "[" * 100_000])
def test_malformed_configuration(hf: Path, content: str) -> None:
    (hf / "config.json").write_text(content)
    assert "config.json: not a model configuration" in refuse(hf)


def test_computed_buffers_of_old_files_are_ignored(hf: Path) -> None:
    """Every byte is as it is without them, but the times and places in the records."""
    convert(hf, "torchtitan", hf.parent / "before")
    tensors = load_file(hf / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(tensors, hf / "model.safetensors", {"format": "pt"})
    convert(hf, "torchtitan", hf.parent / "after")
    before, after = (
        {path.name: path.read_bytes() for path in (hf.parent / name).iterdir() if path.name != "lt-convert.json"}
        for name in ("before", "after")
    )
    assert before == after
    convert(hf.parent / "after", "hf", hf.parent / "back")
    del tensors["model.layers.0.self_attn.rotary_emb.inv_freq"]
    back = load_file(hf.parent / "back" / "model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("name", ["lt-convert.padding", "padding.safetensors"])
def test_a_hostile_padding_file_is_refused(hf: Path, name: str) -> None:
    """The second is its name of before."""
    save_file({"padding.model.embed_tokens.weight": torch.zeros(6, 31)}, hf / name)
    assert "the configuration says" in refuse(hf)
    save_file({"model.norm.weight": torch.zeros(32)}, hf / name)
    assert name in refuse(hf)


@pytest.mark.parametrize("name", ["grouped", "tied", "scaled", "sharded"])
def test_round_trip_is_bit_exact_and_loads_in_transformers(
    name: str, models: dict[str, Path], stored_tensors: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    convert(models[name], "megatron-dist", tmp_path / "run")
    back = convert(tmp_path / "run", "hf", tmp_path / "hf")
    assert stored_tensors(back) == stored_tensors(models[name])
    before, after = (AutoConfig.from_pretrained(directory) for directory in (models[name], back))
    for field in ("hidden_size", "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters", "vocab_size", "dtype"):
        assert getattr(before, field) == getattr(after, field), field
    _, info = AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
    assert not any(info.values()), info


def test_files_of_other_users_are_named(hf: Path) -> None:
    if os.geteuid() == 0:
        os.truncate(hf / "model.safetensors", 100)
    else:
        (hf / "model.safetensors").chmod(0)
    assert "model.safetensors" in refuse(hf)


@pytest.mark.parametrize("to", ["megatron-dist", "megatron-legacy", "torchtitan"])
def test_eight_bits_are_refused_before_anything_is_written(to: str, hf: Path) -> None:
    tensors = load_file(hf / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, hf / "model.safetensors", {"format": "pt"})
    for dtype, message in ((None, "is not written in"), ("bfloat16", "is not cast to bfloat16")):
        with Files() as files, pytest.raises(BadData, match=rf"model\.norm\.weight: is stored as float8_e4m3fn, which {message}"):
            conversion.plan(Request(str(hf), to, str(hf.parent / "out"), dtype), files)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_double_precision_is_cast(dtype: str, hf: Path) -> None:
    tensors = {name: tensor.double() / 3 for name, tensor in load_file(hf / "model.safetensors").items()}
    save_file(tensors, hf / "model.safetensors", {"format": "pt"})
    found = load_file(convert(hf, "hf", hf.parent / "cast", dtype=dtype) / "model.safetensors")
    for name, tensor in tensors.items():
        torch.testing.assert_close(found[name], tensor.to(getattr(torch, dtype)), rtol=2**-8, atol=0)
