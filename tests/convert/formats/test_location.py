"""Which checkpoint is meant, and in which format it is; a format that is not read is named, with the way around it."""

import io
import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats import location
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, NoInput, ToolError
from lt_shared.contracts import checkpoint_layout

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"


def locate(argument: object) -> tuple[str, str]:
    with Files() as files:
        return location.locate(str(argument), files)


@pytest.fixture
def hf(models: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(models["scaled"], tmp_path / "model"))


@pytest.fixture
def run(hf: Path, tmp_path: Path) -> Path:
    """A run with the checkpoints 10 and 20."""
    conversion.convert(Request(str(hf), "megatron-dist", str(tmp_path / "made")))
    for iteration in (10, 20):
        shutil.copytree(tmp_path / "made" / "release", tmp_path / "run" / f"iter_{iteration:07d}")
    checkpoint_layout.write_tracker(tmp_path / "run", 10)
    return tmp_path / "run"


def test_run_directory_means_its_tracked_checkpoint(run: Path, tmp_path: Path) -> None:
    assert locate(run) == (str(run / "iter_0000010"), "megatron-dist")
    assert locate(f"{run}/") == (str(run / "iter_0000010"), "megatron-dist")
    assert locate(run / "iter_0000020") == (str(run / "iter_0000020"), "megatron-dist")
    assert locate(tmp_path / "made") == (str(tmp_path / "made" / "release"), "megatron-dist")
    made = conversion.convert(Request(str(run), "hf", str(tmp_path / "hf")))
    assert (made.iteration, made.format) == (10, "hf")


@pytest.mark.parametrize("content", ["", "-1", "../../etc", "1e3", "٣", "\0", "iter_0000010", "1" * 5000])
def test_tracker_that_names_no_iteration(run: Path, content: str) -> None:
    (run / checkpoint_layout.TRACKER).write_text(content)
    with pytest.raises((BadData, NoInput)) as caught:
        locate(run)
    assert len(str(caught.value)) < 400


def test_newest_complete_step_of_torchtitan(hf: Path, tmp_path: Path) -> None:
    for step in (5, 10):
        conversion.convert(Request(str(hf), "torchtitan", str(tmp_path / "titan" / f"step-{step}")))
    (tmp_path / "titan" / "step-20").mkdir()
    (tmp_path / "titan" / "step-20" / "__0_0.distcp").write_bytes(b"")
    assert locate(tmp_path / "titan") == (str(tmp_path / "titan" / "step-10"), "torchtitan")
    shutil.rmtree(tmp_path / "titan" / "step-10")
    shutil.rmtree(tmp_path / "titan" / "step-5")
    with pytest.raises(BadData, match="none of its 1 checkpoints is complete"):
        locate(tmp_path / "titan")


LINES = [
    '{"v":1,"kind":"checkpoint","path":"gone","format":"megatron-dist"}',
    '{"v":1,"kind":"checkpoint","path":"MODEL","format":"hf"}',
    '{"v":1,"kind":"end","count":2}',
]


def test_last_checkpoint_of_a_manifest(hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(LINES).replace("MODEL", str(hf)) + "\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert locate("-") == (str(hf), "hf")
    (tmp_path / "manifest").write_text(text)
    assert locate(f"@{tmp_path / 'manifest'}") == (str(hf), "hf")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"gone\n{hf}\n"))
    assert locate("-") == (str(hf), "hf")


@pytest.mark.parametrize(
    "text", ["", LINES[1], '{"v":1,"kind":"dataset","prefix":"d","tokens":1}\n{"v":1,"kind":"end","count":1}']
)
def test_manifest_without_a_checkpoint(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    with pytest.raises(NoInput):
        locate("-")


def test_what_is_no_checkpoint(hf: Path, tmp_path: Path) -> None:
    with pytest.raises(NoInput, match="no such directory"):
        locate(tmp_path / "gone")
    with pytest.raises(NoInput, match="no such directory") as missing:
        locate(tmp_path / "meta-llama" / "Llama-3.1-8B")
    assert missing.value.hint == "a model of the Hugging Face Hub: hf download meta-llama/Llama-3.1-8B --local-dir Llama-3.1-8B"
    with pytest.raises(NoInput, match="no such directory") as missing:
        locate(hf.parent / f"{hf.name}x")
    assert missing.value.hint == f"did you mean {hf}?"
    with pytest.raises(NoInput, match="not a directory"):
        locate(hf / "config.json")
    (hf / "model.safetensors").unlink()
    with pytest.raises(NoInput, match=r"config\.json without weights"):
        locate(hf)
    (hf / "__0_0.distcp").write_bytes(b"")
    with pytest.raises(BadData, match=r"\.metadata: missing"):
        locate(hf)


def test_tensors_are_bytes_of_json_in_a_run_record(run: Path) -> None:
    record = json.loads((run / "iter_0000010" / "run.json").read_text())
    assert set(record["files"]) == {path.name for path in (run / "iter_0000010").iterdir()} - {"run.json", "checksums.json"}


@pytest.mark.parametrize(
    "name",
    [
        "global_step1000/mp_rank_00_model_states.pt",
        "mp_rank_00_model_states.pt",
        "layer_00-model_00-model_states.pt",
        "layer_04-model_01-model_states.pt",
    ],
)
@pytest.mark.parametrize("tracker", [True, False])
def test_checkpoints_of_deepspeed_are_refused_by_name(tmp_path: Path, name: str, tracker: bool) -> None:
    """Of Megatron-DeepSpeed and GPT-NeoX. Megatron-DeepSpeed writes Megatron's tracker file, too."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    if tracker:
        (tmp_path / checkpoint_layout.TRACKER).write_text("1000")
    with pytest.raises(BadData, match="DeepSpeed") as caught:
        locate(tmp_path)
    assert "convert_neox_to_hf.py" in str(caught.value.hint)


def test_a_model_with_deepspeeds_state_beside_it(hf: Path) -> None:
    (hf / "global_step500").mkdir()
    (hf / "zero_to_fp32.py").touch()
    assert locate(hf) == (str(hf), "hf")


def test_run_of_bridge_without_megatrons_tracker(run: Path) -> None:
    (run / checkpoint_layout.TRACKER).unlink()
    torch.save({"step": torch.tensor(20)}, run / "latest_train_state.pt")
    assert locate(run) == (str(run / "iter_0000020"), "megatron-dist")
    torch.save({"step": torch.tensor(-1)}, run / "latest_train_state.pt")
    with pytest.raises(BadData, match="step is -1"):
        locate(run)
    torch.save({"step": torch.tensor(2.0)}, run / "latest_train_state.pt")
    with pytest.raises(BadData, match="no count"):
        locate(run)


def test_archive_of_nemo_1(tmp_path: Path) -> None:
    (tmp_path / "model.nemo").write_bytes(b"x")
    with pytest.raises(BadData, match="an archive of NeMo 1") as caught:
        locate(tmp_path / "model.nemo")
    assert "convert_nemo1_to_nemo2.py" in str(caught.value.hint)


def error(source: Path, tmp_path: Path) -> ToolError:
    with pytest.raises(ToolError) as found:
        conversion.convert(Request(str(source), "megatron-dist", str(tmp_path / "result")))
    assert found.value.hint
    return found.value


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["pytorch_model.bin"], r"config\.json: missing beside pytorch_model\.bin"),
        (["consolidated.00.pth", "tokenizer.model"], "of Meta or Mistral without params"),
        (["consolidated.safetensors", "tekken.json"], "of Meta or Mistral without params"),
        (["adapter_config.json", "adapter_model.safetensors"], "LoRA adapter without its model"),
        (["model-Q4_K_M.gguf"], "GGUF"),
        (["config.json", "model.onnx"], "ONNX"),
        (["config.json", "flax_model.msgpack"], "Flax"),
        (["config.json", "tf_model.h5"], "TensorFlow"),
        (["run.nemo"], "NeMo 1"),
        (["config.json", "gptq_model-4bit-128g.safetensors"], "quantized by GPTQ"),
        (["llama-2-7b.safetensors", "config.json"], "a name that transformers does not load"),
        (["pytorch_model_fsdp_0", "optimizer_0"], "Accelerate's FSDP"),
        (["lit_model.pth", "model_config.yaml"], "LitGPT"),
        (["checkpoint_metadata.json", "model_config.json", "model"], "nanotron"),
        (["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "latest"], "DeepSpeed"),
        (["config.json", "rust_model.ot"], "rust-bert"),
        (["model_state.pdparams"], "PaddlePaddle"),
        (["openvino_model.xml", "openvino_model.bin"], "for devices"),
        (["0.npz", "config.json"], "MLX"),
        (["model_0.pt"], r"without metadata\.pkl"),
        (["trt.engine"], "TensorRT"),
        (["_METADATA"], "Orbax"),
        (["last.ckpt"], "Lightning"),
        (["state.pt"], "pickles"),
    ],
)
def test_formats_that_are_not_read(names: list[str], message: str, tmp_path: Path) -> None:
    place = tmp_path / "model"
    place.mkdir()
    for name in names:
        (place / name).write_text("{}")
    found = error(place, tmp_path)
    assert isinstance(found, BadData)
    assert re.search(message, str(found)), str(found)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_pointers_of_git_lfs(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    place = Path(shutil.copytree(models["grouped"], tmp_path / "model"))
    (place / name).write_bytes(POINTER)
    found = error(place, tmp_path)
    assert f"{name}: a git-lfs pointer" in str(found)
    assert "git lfs pull" in str(found.hint)


def test_a_pointer_in_place_of_a_shard(models: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    conversion.convert(Request(str(models["grouped"]), "torchtitan", str(run)))
    shard = min(run.glob("*.distcp"))
    shard.write_bytes(POINTER)
    with pytest.raises(ToolError, match=r"distcp: a git-lfs pointer"):
        conversion.convert(Request(str(run), "hf", str(tmp_path / "hf"), verify=False))
