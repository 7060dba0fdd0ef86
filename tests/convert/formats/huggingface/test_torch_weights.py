"""`pytorch_model.bin` as torch has written it in all its versions, alone, in shards and as a variant, bit for bit."""

import io
import json
import os
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_shared.console import BadData

State = dict[str, torch.Tensor]
TOKENS = torch.arange(20)[None]
SINGLE, INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64,
)  # fmt: skip


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIG).eval()


@pytest.fixture
def place(model: PreTrainedModel, tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    model.config.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def back(source: Path, tmp_path: Path) -> State:
    """The tensors after a conversion to Megatron's format and back, which are those of a direct conversion."""
    conversion.convert(Request(str(source), "megatron-dist", str(tmp_path / "megatron")))
    conversion.convert(Request(str(tmp_path / "megatron"), "hf", str(tmp_path / "back")))
    conversion.convert(Request(str(source), "hf", str(tmp_path / "direct")))
    converted = load_file(tmp_path / "back" / "model.safetensors")
    check_same(load_file(tmp_path / "direct" / "model.safetensors"), converted)
    return converted


def check_same(converted: State, expected: State) -> None:
    assert converted.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in converted.items())


def logits(directory: Path) -> torch.Tensor:
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()(TOKENS).logits


@pytest.mark.parametrize("zipped", [True, False])
def test_one_file(zipped: bool, model: PreTrainedModel, place: Path, tmp_path: Path) -> None:
    torch.save(model.state_dict(), place / SINGLE, _use_new_zipfile_serialization=zipped)
    check_same(back(place, tmp_path), model.state_dict())
    assert torch.equal(logits(tmp_path / "back"), logits(place))


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("variant", ["", ".fp16"])
def test_shards(variant: str, indexed: bool, model: PreTrainedModel, place: Path, tmp_path: Path) -> None:
    state = model.state_dict()
    names = [f"pytorch_model{variant}-{number:05d}-of-00003.bin" for number in (1, 2, 3)]
    for number, name in enumerate(names):
        torch.save(dict(list(state.items())[number::3]), place / name, _use_new_zipfile_serialization=number == 0)
    if indexed:
        weight_map = {key: names[position % 3] for position, key in enumerate(state)}
        (place / f"pytorch_model.bin.index{variant}.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    check_same(back(place, tmp_path), state)
    (place / names[1]).unlink()
    with pytest.raises(BadData, match="missing"):
        conversion.convert(Request(str(place), "torchtitan", str(tmp_path / "titan")))


@pytest.mark.parametrize("zipped", [True, False])
def test_views_of_shared_storages(zipped: bool, model: PreTrainedModel, place: Path, tmp_path: Path) -> None:
    """Parameters, transposes, slices of one storage, and one value for all elements."""
    state: dict[str, Any] = dict(model.state_dict())
    names = [f"model.layers.{layer}.{part}_layernorm.weight" for layer in (0, 1) for part in ("input", "post_attention")]
    packed = torch.stack([state[name] + number for number, name in enumerate(names)]).t().contiguous()
    state |= {name: packed[:, number] for number, name in enumerate(names)}
    state["model.norm.weight"] = torch.tensor([3.0]).expand(32)
    state["lm_head.weight"] = torch.nn.Parameter(state["lm_head.weight"].t().contiguous().t())
    torch.save(state, place / SINGLE, _use_new_zipfile_serialization=zipped)
    check_same(back(place, tmp_path), {name: tensor.detach() for name, tensor in state.items()})


def test_masks_of_gpt2(tmp_path: Path) -> None:
    """Older files of GPT-2 have a causal mask per layer, as bytes or as booleans, and no prefix of the names."""
    model = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64)).eval()
    model.save_pretrained(tmp_path / "published")
    place = tmp_path / "old"
    place.mkdir()
    model.config.save_pretrained(place)
    state = {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    for layer, dtype in enumerate((torch.uint8, torch.bool)):
        state[f"h.{layer}.attn.bias"] = torch.ones(64, 64).tril().to(dtype)[None, None]
        state[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    torch.save(state, place / SINGLE, _use_new_zipfile_serialization=False)
    check_same(back(place, tmp_path), load_file(tmp_path / "published" / "model.safetensors"))


def test_the_file_that_transformers_would_load(
    model: PreTrainedModel, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Safetensors come before a file of torch, and that comes before a variant; the other files are told."""
    plus_one = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    torch.save(plus_one, place / SINGLE)
    model.save_pretrained(place, variant="fp16")
    conversion.convert(Request(str(place), "hf", str(tmp_path / "torch")))
    assert "not taken along: model.fp16.safetensors" in capsys.readouterr().err
    check_same(load_file(tmp_path / "torch" / "model.safetensors"), plus_one)
    assert torch.equal(logits(tmp_path / "torch"), logits(place))
    (place / "model.fp16.safetensors").unlink()
    model.save_pretrained(place)
    conversion.convert(Request(str(place), "megatron-dist", str(tmp_path / "megatron")))
    assert f"not taken along: {SINGLE}" in capsys.readouterr().err
    conversion.convert(Request(str(tmp_path / "megatron"), "hf", str(tmp_path / "back")))
    check_same(load_file(tmp_path / "back" / "model.safetensors"), model.state_dict())


def refuse(place: Path, message: str) -> None:
    with pytest.raises(BadData, match=message):
        conversion.convert(Request(str(place), "megatron-dist", str(place.parent / "refused")))


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_other_content(zipped: bool, model: PreTrainedModel, place: Path) -> None:
    state = model.state_dict()
    for content, message in (
        (model, "refers to transformers|something other than a storage"),
        ({"state_dict": state, "epoch": 3}, "'state_dict' is a OrderedDict, expected a tensor"),
        ([state], "holds a list, expected a dict"),
        (state | {"step": torch.tensor(1, dtype=torch.int16)}, "holds no plain tensor|other than a storage of numbers"),
        (state | {"model.norm.weight": torch.ones(32, dtype=torch.complex64)}, "plain tensor|storage of numbers"),
    ):
        torch.save(content, place / SINGLE, _use_new_zipfile_serialization=zipped)
        refuse(place, message)
        refuse(place, rf"^[^:]*/{SINGLE}: (?!{SINGLE})")


class Exploit:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_is_executed(zipped: bool, model: PreTrainedModel, place: Path, tmp_path: Path) -> None:
    for content in (Exploit(tmp_path / "ran"), {**model.state_dict(), "more": Exploit(tmp_path / "ran")}):
        torch.save(content, place / SINGLE, _use_new_zipfile_serialization=zipped)
        refuse(place, "which no checkpoint needs")
    (place / SINGLE).write_bytes(pickle.dumps(Exploit(tmp_path / "ran")))
    refuse(place, "which no checkpoint needs")
    assert not (tmp_path / "ran").exists()


def old_file(state: State) -> bytes:
    content = io.BytesIO()
    torch.save(state, content, _use_new_zipfile_serialization=False)
    return content.getvalue()


def test_old_files_with_two_readings(model: PreTrainedModel, place: Path) -> None:
    """Bytes behind the last storage, sizes that differ, and a file that is a tar archive, too, which torch would read."""
    data = old_file(model.state_dict())
    norm = model.state_dict()["model.norm.weight"]
    (place / SINGLE).write_bytes(data + b"x")
    refuse(place, "1 bytes follow its storages")
    (place / SINGLE).write_bytes(data[:-1])
    refuse(place, "ends at")
    begin = data.rindex(struct.pack("<q", 32) + norm.numpy().tobytes())
    (place / SINGLE).write_bytes(data[:begin] + struct.pack("<q", 31) + data[begin + 8 :])
    refuse(place, "another size than its tensors say")
    stream = io.BytesIO(data)
    magic, version, _ = (pickle.load(stream) for _ in range(3))
    beginning = pickle.dumps(magic, 2) + pickle.dumps(version, 2) + b"\x80\x02}(X\r\0\0\0little_endian\x88X\1\0\0\0xX"
    # A text of the third pickle covers the header of the archive's first member.
    text = bytearray(tarfile.TarInfo("x").tobuf()[len(beginning) + 4 :])
    block = bytearray(beginning + struct.pack("<I", len(text)) + text)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    assert tarfile.TarInfo.frombuf(bytes(block), "utf-8", "surrogateescape").name
    (place / SINGLE).write_bytes(bytes(block) + b"u." + data[stream.tell() :])
    refuse(place, "is a tar archive and a pickle at once")


def test_a_pickle_longer_than_what_is_read_first(
    model: PreTrainedModel, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lt_convert.containers import torch_files

    monkeypatch.setattr(torch_files, "_FIRST_BYTES", 100)
    (place / SINGLE).write_bytes(old_file(model.state_dict()))
    check_same(back(place, tmp_path), model.state_dict())


@pytest.mark.parametrize("more", [{}, {"quantization_config": {"group_size": 64, "bits": 4}}])
def test_a_model_that_mlx_has_quantized(more: dict[str, Any], model: PreTrainedModel, place: Path) -> None:
    model.save_pretrained(place)
    config = json.loads((place / "config.json").read_text()) | {"quantization": {"group_size": 64, "bits": 4}} | more
    (place / "config.json").write_text(json.dumps(config))
    refuse(place, r"config\.json: quantized by MLX")


def test_weights_without_a_configuration(model: PreTrainedModel, place: Path) -> None:
    torch.save(model.state_dict(), place / SINGLE)
    (place / "config.json").unlink()
    refuse(place, r"config\.json: missing beside pytorch_model\.bin")
