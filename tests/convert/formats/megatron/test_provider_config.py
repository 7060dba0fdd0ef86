"""Checkpoints of Megatron-Bridge and NeMo 2: the same model and optimizer state as Megatron-LM's checkpoint of the same run."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.commands.follow import following
from lt_convert.commands.follow.following import FollowRequest
from lt_convert.commands.merge import merging, sources
from lt_convert.formats import location
from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, NoInput
from lt_shared.models.architecture import Architecture, RopeScaling

LLAMA = Architecture("run", "llama", 3, 32, 96, 4, 2, 250, 64, rotary_base=500000.0, rope_scaling=RopeScaling(32.0))
QWEN2 = dataclasses.replace(LLAMA, add_qkv_bias=True, tie_embeddings=True, rope_scaling=None)
GPT = Architecture("run", "gpt", 3, 32, 96, 4, 4, 250, 64)
MODELS = {"llama": LLAMA, "qwen2": QWEN2, "gpt": GPT}
LLAMA_31 = {"scale_factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "old_context_len": 8192}
FLAT, PER_WEIGHT = "dp_reshardable", "fully_reshardable"
BRIDGE = {"trainer": "bridge"}
RUNS: dict[str, tuple[Architecture, str, dict[str, Any]]] = {
    "bridge": (LLAMA, FLAT, BRIDGE | {"fields": {"rope_scaling": True, "rope_scaling_factor": 32.0}, "tensor_parallel": 2}),
    "bridge-2025": (LLAMA, FLAT, BRIDGE | {"fields": LLAMA_31, "target": "megatron.bridge.models.llama.Llama31ModelProvider"}),
    "bridge-nested": (
        QWEN2,
        FLAT,
        BRIDGE
        | {
            "nested": True,
            "fields": {"max_position_embeddings": 64, "seq_length": 16},
            "target": "megatron.bridge.models.gpt.model_config.BridgeGPTModelConfig",
        },
    ),
    "bridge-gpt": (GPT, PER_WEIGHT, BRIDGE),
    "nemo": (LLAMA, PER_WEIGHT, {"trainer": "nemo", "fields": LLAMA_31}),
    "nemo-pipeline": (LLAMA, FLAT, {"trainer": "nemo", "fields": LLAMA_31, "pipeline_parallel": 2}),
}


@pytest.fixture(scope="module")
def stock(ranks: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """NAME/iter_0000003 or NAME/weights of each run. Megatron-LM's form, which is the same on any ranks, once for each model."""
    root = tmp_path_factory.mktemp("providers")

    def job(architecture: Architecture, form: str, directory: Path, **more: Any) -> dict[str, Any]:
        record = architecture.to_record()
        return {"architecture": record, "padded_vocab_size": 256, "steps": 3, "save": {form: str(directory)}, **more}

    jobs = [job(architecture, PER_WEIGHT, expected(root, name)) for name, architecture in MODELS.items()]
    for name, (architecture, form, more) in RUNS.items():
        jobs.append(job(architecture, form, root / name / ("weights" if more["trainer"] == "nemo" else "iter_0000003"), **more))
    ranks("megatron_optimizer.py", jobs, world_size=2)
    return root


def expected(stock: Path, name: str) -> Path:
    """Megatron-LM's checkpoint of a model, or of a run's model."""
    model = name if name in MODELS else next(key for key, architecture in MODELS.items() if architecture == RUNS[name][0])
    return stock / f"{model}-expected" / "iter_0000003"


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    return Path(conversion.convert(Request(str(source), to, str(destination), **options)).path)


def state(path: Path) -> dict[str, dict[str, bytes]]:
    with Files() as files:
        found = location.open_source(str(path), files).optimizer
        assert found is not None
        return {
            kind: {name: blocks.read(each, files).tobytes() for name, each in named.items()}
            for kind, named in found.tensors.items()
        }


@pytest.mark.parametrize("name", RUNS)
def test_is_the_same_model_as_megatron_lms(stock: Path, name: str, tmp_path: Path) -> None:
    architecture = RUNS[name][0]
    with Files() as files:
        source = location.open_source(str(stock / name), files)
    assert dataclasses.replace(source.model.architecture, name="run") == architecture
    assert (source.iteration, source.model.padded_vocab_size) == (3, 256)
    convert(stock / name, "hf", tmp_path / "found")
    convert(expected(stock, name), "hf", tmp_path / "expected")
    found, theirs = (load_file(tmp_path / place / "model.safetensors") for place in ("found", "expected"))
    assert found.keys() == theirs.keys()
    assert all(torch.equal(tensor, found[key]) for key, tensor in theirs.items())
    assert (tmp_path / "found" / "config.json").read_text() == (tmp_path / "expected" / "config.json").read_text()


@pytest.mark.parametrize("name", RUNS)
def test_has_the_same_optimizer_state(stock: Path, name: str) -> None:
    found = state(stock / name)
    assert set(found) >= {"param", "exp_avg", "exp_avg_sq"}
    assert found == state(expected(stock, name))


def test_counters_of_bridge(stock: Path) -> None:
    with Files() as files:
        source = location.open_source(str(stock / "bridge"), files)
    assert source.optimizer is not None
    assert (source.optimizer.step, source.optimizer.tokens) == (3, 24 * 64)
    assert source.details["consumed_samples"] == 24
    assert source.details["parallel"] == {"tensor_parallel": 2, "pipeline_parallel": 1}


def changed(stock: Path, tmp_path: Path, name: str, section: str, **fields: Any) -> Path:
    copy = tmp_path / "changed"
    shutil.copytree(stock / name, copy)
    path = copy / ("context/model.yaml" if name.startswith("nemo") else "iter_0000003/run_config.yaml")
    document = yaml.safe_load(path.read_text())
    for key, value in fields.items():
        document[section][key] = value
    path.write_text(yaml.safe_dump(document))
    return copy


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layernorm_zero_centered_gamma": True}, "layernorm_zero_centered_gamma"),
        ({"multi_latent_attention": True}, "latent|q_lora_rank|rotary_scaling_factor"),
        ({"position_embedding_type": "yarn"}, "malformed: YarnScaling"),
        ({"yarn_rotary_scaling_factor": 32.0}, "yarn_rotary_scaling_factor is 32.0"),
        ({"activation_func_clamp_value": 7.0}, "activation_func_clamp_value is 7.0"),
        ({"softmax_scale": 0.1}, "softmax_scale"),
        (
            {"mtp_num_layers": 1},
            "no supported family has this .* of features: the nearest is llama, which has mtp_num_layers 0, not 1",
        ),
        ({"_target_": "acme.models.GPTModelProvider"}, "acme.models.GPTModelProvider, a class outside"),
        ({"rotary_base": {"_target_": "acme.Bases", "local": 10000}}, "rotary_base"),
        ({"layernorm_epsilon": {"_target_": "acme.Epsilon"}}, "layernorm_epsilon"),
        ({"activation_func": {"_target_": "torch.nn.functional.gelu", "_call_": False}}, "gelu with gates"),
        ({"_target_": "megatron.bridge.models.gemma.gemma_provider.GemmaModelProvider"}, "GemmaModelProvider"),
        ({"_target_": "megatron.bridge.models.qwen_vl.Qwen25VLModelProvider"}, "Qwen25VLModelProvider"),
        ({"transformer_layer_spec": {"_target_": "acme.layers.build", "_call_": False}}, "acme.layers.build"),
        (
            {"transformer_layer_spec": {"_target_": "megatron.core.ModuleSpec", "submodules": {"mlp": {"_target_": "acme.MLP"}}}},
            "acme.MLP",
        ),
        ({"heterogeneous_block_specs": {"_target_": "acme.Blocks"}}, "heterogeneous_block_specs"),
        ({"attention_output_gate": True}, "attention_output_gate False, not True"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0: it scales activations in a way that no other"),
        ({"mrope_section": [1, 1, 2]}, "mrope_section is .1, 1, 2.: it rotates positions in a way that no other format has"),
        ({"rotary_base_per_layer": {"_target_": "acme.Bases"}}, "rotary_base_per_layer"),
        ({"hidden_size": None}, "does not describe a model|hidden_size"),
        ({"num_layers": "three"}, "three|malformed"),
    ],
)
def test_what_has_no_place_is_refused_by_name(stock: Path, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadData, match=message):
        convert(changed(stock, tmp_path, "bridge", "model", **fields), "hf", tmp_path / "hf")


def test_objects_that_change_nothing_and_one_that_is_not_known(
    stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = {
        "transformer_layer_spec": {"_target_": "megatron.bridge.models.gpt_provider.default_layer_spec", "_call_": False},
        "init_method": {"_target_": "torch.nn.init.normal_", "_partial_": True, "std": 0.02},
        "generation_config": {"_target_": "transformers.GenerationConfig", "_call_": True},
        "attention_of_acme": {"_target_": "acme.Attention"},
    }
    with Files() as files:
        architecture = location.open_source(str(changed(stock, tmp_path, "bridge", "model", **objects)), files).model.architecture
    assert dataclasses.replace(architecture, name="run") == LLAMA
    remarks = capsys.readouterr().err
    assert "attention_of_acme" in remarks
    assert not any(name in remarks for name in list(objects)[:3])


def test_a_number_without_a_point_and_a_vocabulary_that_is_not_stored(
    stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = changed(stock, tmp_path, "nemo", "config", vocab_size=None, layernorm_epsilon="1e-05")
    with Files() as files:
        architecture = location.open_source(str(source), files).model.architecture
    assert (architecture.norm_epsilon, architecture.vocab_size) == (1e-5, 256)
    assert "vocabulary size is not stored" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["model: [", "model: !!python/object/apply:os.system ['true']", "train: {}", "[]", "model: 3"])
def test_yaml_that_is_no_configuration_is_refused(stock: Path, tmp_path: Path, text: str) -> None:
    shutil.copytree(stock / "bridge", tmp_path / "run")
    (tmp_path / "run" / "iter_0000003" / "run_config.yaml").write_text(text)
    with pytest.raises(BadData, match=r"run_config\.yaml"):
        convert(tmp_path / "run", "hf", tmp_path / "hf")


def test_what_nemo_has_not_finished_is_refused(stock: Path, tmp_path: Path) -> None:
    shutil.copytree(stock / "nemo", tmp_path / "step=3")
    (tmp_path / "step=3-unfinished").touch()
    with pytest.raises(BadData, match="NeMo has not finished it"):
        convert(tmp_path / "step=3", "hf", tmp_path / "hf")


def run_of_two(stock: Path, directory: Path, trainer: str) -> Path:
    """The checkpoint of `stock` twice, and one that is not complete."""
    for step, is_complete in ((3, True), (6, True), (9, False)):
        if trainer == "nemo":
            place = directory / "checkpoints" / f"model--val_loss=0.50-step={step}-consumed_samples=8.0"
            shutil.copytree(stock / "nemo", place)
            if not is_complete:
                Path(f"{place}-unfinished").touch()
        else:
            ignored = shutil.ignore_patterns(*(() if is_complete else ("run_config.yaml",)))
            shutil.copytree(stock / "bridge" / "iter_0000003", directory / f"iter_{step:07d}", ignore=ignored)
            (directory / "latest_checkpointed_iteration.txt").write_text(str(step))
    return directory


@pytest.mark.parametrize("trainer", ["bridge", "nemo"])
def test_a_run_is_merged_and_followed(stock: Path, trainer: str, tmp_path: Path) -> None:
    run = run_of_two(stock, tmp_path / "run", trainer)
    convert(stock / trainer, "hf", tmp_path / "expected")
    expected = load_file(tmp_path / "expected" / "model.safetensors")
    merging.merge(merging.MergeRequest(sources.last_of_run(str(run), 2), "hf", str(tmp_path / "merged")))
    request = FollowRequest(str(run), "hf", str(tmp_path / "followed"))
    assert following.follow(request, None, lambda _: None)
    names = {path.name for path in (tmp_path / "followed").iterdir() if path.is_dir()}
    assert names == ({"step-3", "step-6"} if trainer == "nemo" else {"iter_0000003", "iter_0000006"})
    for directory in (tmp_path / "merged", *(tmp_path / "followed" / name for name in names)):
        found = load_file(directory / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())
    with pytest.raises(NoInput, match="2 complete checkpoints"):
        sources.last_of_run(str(run), 3)
