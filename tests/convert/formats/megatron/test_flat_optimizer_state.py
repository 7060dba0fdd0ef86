"""The flat buffers of megatron-core's distributed optimizer, converted, are what megatron-core itself stores per weight."""

import dataclasses
import pickle
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from common_state import move_beside_the_tensors
from stored_checkpoints import stored_values
from torch.distributed import checkpoint

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats.megatron import parameter_order, torch_dist
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData
from lt_shared.models.architecture import Architecture

# No size is a multiple of 64, so every parameter but the embedding is followed by padding.
LLAMA = Architecture("flat", "llama", 3, 30, 90, 6, 2, 251, 64, kv_channels=6)
MIXTRAL = dataclasses.replace(LLAMA, num_experts=4, ffn_hidden_size=40)
QWEN3 = dataclasses.replace(LLAMA, qk_layernorm=True, kv_channels=16)
GPT2 = Architecture("flat", "gpt", 3, 36, 90, 6, 6, 251, 64, tie_embeddings=True)
RUNS: dict[str, tuple[Architecture, dict[str, Any]]] = {
    "data": (LLAMA, {}),
    "tensor": (LLAMA, {"tensor_parallel": 2}),
    "virtual-pipeline": (dataclasses.replace(LLAMA, num_layers=4), {"pipeline_parallel": 2, "virtual_pipeline_parallel": 2}),
    "experts": (MIXTRAL, {}),
    "expert-parallel": (MIXTRAL, {"expert_parallel": 2}),
    "gpt2": (GPT2, {"pipeline_parallel": 2}),
    "fp32": (QWEN3, {"dtype": "float32"}),
    "fp32-norms": (LLAMA, {"mixed": True}),
    "fused-norms": (LLAMA, {"fused_norms": True, "tensor_parallel": 2}),
    # Padded before their ends, so megatron-core's own form per weight is shifted: "data" has the same state.
    "buckets": (LLAMA, {"bucket_size": 3000}),
}
FLAT, GATHERED, PER_WEIGHT = "dp_reshardable", "dp_zero_gather_scatter", "fully_reshardable"
# In which buffers a weight lies, and where, is the same in both flat forms: one run of each kind of buffers.
BOTH_FORMS = ("virtual-pipeline", "expert-parallel", "fp32")
STEPS = 3
ITERATION = "iter_0000003"


@pytest.fixture(scope="module")
def stock(ranks: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN/FORM/iter_0000003 of each run and form, trained and saved by megatron-core on two ranks."""
    root = tmp_path_factory.mktemp("flat")

    def job(name: str, architecture: Architecture, **more: Any) -> dict[str, Any]:
        forms = (FLAT, GATHERED, PER_WEIGHT) if name in BOTH_FORMS else (FLAT, PER_WEIGHT)
        save = {form: str(root / name / form / ITERATION) for form in forms}
        return {"architecture": architecture.to_record(), "padded_vocab_size": 256, "steps": STEPS, "save": save, **more}

    ranks("megatron_optimizer.py", [job(name, architecture, **more) for name, (architecture, more) in RUNS.items()], world_size=2)
    return root


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    return Path(conversion.convert(Request(str(source), to, str(destination), **options)).path)


@pytest.mark.parametrize(
    ("name", "form"), [*((name, FLAT) for name in RUNS if name != "buckets"), *((name, GATHERED) for name in BOTH_FORMS)]
)
def test_state_is_that_of_megatron_core_bit_for_bit(stock: Path, name: str, form: str, tmp_path: Path) -> None:
    converted = stored_values(convert(stock / name / form / ITERATION, "megatron-dist", tmp_path / "run"))
    expected = stored_values(stock / name / PER_WEIGHT / ITERATION)
    if name == "fp32":
        # The main weights of an fp32 model are its weights.
        expected = {key: tensor for key, tensor in expected.items() if "state.param." not in key}
    assert len([key for key in expected if "exp_avg_sq" in key]) >= 8
    for key, tensor in expected.items():
        assert tensor.dtype == converted[key].dtype and torch.equal(tensor, converted[key]), key


def test_buckets_padded_before_their_ends(stock: Path, tmp_path: Path) -> None:
    converted = stored_values(convert(stock / "buckets" / FLAT / ITERATION, "megatron-dist", tmp_path / "run"))
    expected = stored_values(stock / "data" / PER_WEIGHT / ITERATION)
    assert all(torch.equal(tensor, converted[key]) for key, tensor in expected.items())


@pytest.mark.skipif(
    tuple(map(int, metadata.version("megatron-core").split(".")[:2])) >= (0, 20), reason="megatron-core 0.20 does not shift it"
)
def test_a_state_that_megatron_core_shifted_is_refused(stock: Path, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"main weights of .* are not the model's weights"):
        convert(stock / "buckets" / PER_WEIGHT / ITERATION, "torchtitan", tmp_path / "titan")
    assert not (tmp_path / "titan").exists()


def test_to_torchtitan_with_step_and_hyperparameters(stock: Path, tmp_path: Path) -> None:
    convert(stock / "tensor" / FLAT / ITERATION, "torchtitan", tmp_path / "titan")
    convert(stock / "tensor" / PER_WEIGHT / ITERATION, "torchtitan", tmp_path / "expected")
    found, expected = stored_values(tmp_path / "titan"), stored_values(tmp_path / "expected")
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())
    with Files() as files:
        state = torch_dist.open_source(str(stock / "tensor" / FLAT / ITERATION), files).optimizer
    assert state is not None
    assert (state.step, state.hyperparameters["lr"], state.hyperparameters["betas"]) == (STEPS, 1e-2, (0.9, 0.95))
    assert state.tokens == 24 * 64


def test_an_order_that_fits_but_is_wrong_is_refused(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both norms of a layer have one size: only the main weights tell them apart."""
    modules = list(parameter_order.MODULES)
    one, other = modules.index("input_layernorm"), modules.index("pre_mlp_layernorm")
    modules[one], modules[other] = modules[other], modules[one]
    monkeypatch.setattr(parameter_order, "MODULES", tuple(modules))
    with pytest.raises(BadData, match=r"main weights of .*layernorm.* are not the model's weights"):
        convert(stock / "data" / FLAT / ITERATION, "torchtitan", tmp_path / "titan")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1}, "flat buffers are of 2 ranks"),
        ({"tensor_model_parallel_size": None}, "the parallel sizes are not stored"),
        ({"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2}, "not those of layers from 0 on"),
        ({"transformer_impl": "transformer_engine"}, "main weights"),
        ({"overlap_param_gather_with_optimizer_step": True}, "optimizers of their own"),
        ({"num_layers": 2}, "2 layers|missing|no decoder"),
    ],
)
def test_what_does_not_fit_is_refused_and_weights_are_not(
    stock: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    source = tmp_path / "iter_0000003"
    shutil.copytree(stock / "tensor" / FLAT / "iter_0000003", source)
    move_beside_the_tensors(source)
    common = torch.load(source / "common.pt", weights_only=False)
    vars(common["args"]).update(change)
    torch.save(common, source / "common.pt")
    with pytest.raises(BadData, match=message):
        convert(source, "torchtitan", tmp_path / "titan")
    assert not (tmp_path / "titan").exists()
    if "num_layers" not in change:
        convert(source, "hf", tmp_path / "hf")


def test_buffers_under_other_names_are_refused_with_the_remedy(stock: Path, tmp_path: Path) -> None:
    source = tmp_path / "iter_0000003"
    shutil.copytree(stock / "data" / FLAT / "iter_0000003", source)
    path = source / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    for key in [key for key in metadata.state_dict_metadata if ".gbuf_idx_0." in key]:
        other = key.replace("gbuf_idx_", "buffer_")
        metadata.state_dict_metadata[other] = metadata.state_dict_metadata.pop(key)
        for index in [index for index in metadata.storage_data if index.fqn == key]:
            metadata.storage_data[dataclasses.replace(index, fqn=other)] = metadata.storage_data.pop(index)
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(BadData, match="stored as flat buffers under names") as error:
        convert(source, "torchtitan", tmp_path / "out")
    assert "--dist-ckpt-optim-fully-reshardable" in str(error.value.hint)
    convert(source, "torchtitan", tmp_path / "out", optimizer=False)


def test_fragments_of_older_versions(stock: Path, tmp_path: Path) -> None:
    """`fully_sharded_model_space` of megatron-core up to 0.15, of two tensor parallel ranks: (fragments ..., values of one)."""
    source = shutil.copytree(stock / "tensor" / PER_WEIGHT / ITERATION, tmp_path / "source" / ITERATION)
    move_beside_the_tensors(source)
    older = tmp_path / ITERATION
    tensors = stored_values(source)
    for name, tensor in tensors.items():
        if name.startswith("optimizer.state."):
            layers = tensor.shape[0] if ".layers." in name else 1
            weight = tensor if ".layers." in name else tensor[None]
            counts = {"linear_fc1.weight": (4, 1), "linear_fc2.weight": (1, 2), "linear_proj.weight": (1, 2)}
            along = next((count for end, count in counts.items() if name.endswith(end)), (2, 1) if weight.dim() == 3 else (1,))
            rows = [
                piece for half in weight.chunk(along[0], 1) for piece in half.chunk(along[-1] if weight.dim() == 3 else 1, -1)
            ]
            whole = torch.stack([piece.reshape(layers, -1) for piece in rows], 1).reshape(layers, *along, -1).contiguous()
            tensors[name] = whole if ".layers." in name else whole[0]
    checkpoint.save(tensors, storage_writer=checkpoint.FileSystemWriter(older), no_dist=True)
    for file in ("common.pt", "metadata.json"):
        shutil.copy(source / file, older / file)
    convert(older, "torchtitan", tmp_path / "titan")
    convert(source, "torchtitan", tmp_path / "expected")
    found, expected = stored_values(tmp_path / "titan"), stored_values(tmp_path / "expected")
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, found[key]) for key, tensor in expected.items())
