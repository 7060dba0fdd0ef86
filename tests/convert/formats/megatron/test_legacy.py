"""Legacy checkpoints against the files that Megatron's own models give, rank by rank, and damage of every kind."""

import argparse
import dataclasses
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.formats.checkpoint import LegacyTarget
from lt_convert.formats.megatron import legacy
from lt_convert.tensors import blocks
from lt_convert.tensors.source_files import Files
from lt_shared.console import BadData, UsageError
from lt_shared.contracts import checkpoint_layout
from lt_shared.models.architecture import Architecture

LLAMA = Architecture("llama", "llama", 4, 32, 88, 4, 2, 250, 64)
ARCHITECTURES = {
    "llama": LLAMA,
    "qwen2": dataclasses.replace(LLAMA, add_qkv_bias=True, tie_embeddings=True),
    "gpt": Architecture("gpt", "gpt", 4, 32, 128, 4, 4, 250, 64, tie_embeddings=True),
}
WHOLE = LegacyTarget()
TARGETS = {"llama": LegacyTarget(tensor_parallel_size=2), "qwen2": LegacyTarget(1, 2, 2), "gpt": LegacyTarget(1, 2)}
TOKENS = [[(7 * position * position + 3) % 250 for position in range(48)]]
PADDED = 256
# Two orders of summation of the same fp32 network, with logits of size 1 to 3.
CLOSE = 1e-5

Ranks = Callable[..., None]


def convert(source: Path, to: str, destination: Path, **options: Any) -> Path:
    conversion.convert(Request(str(source), to, str(destination), **options))
    return destination


def contents(run: Path) -> dict[str, Any]:
    """Every rank's file as torch loads it."""
    directory = next(path for path in run.iterdir() if path.is_dir())
    with torch.serialization.safe_globals([argparse.Namespace]):
        return {path.parent.name: load(path) for path in sorted(directory.glob("mp_rank_*/model_optim_rng.pt"))}


def load(path: Path) -> Any:
    ours = b"numpy" not in path.read_bytes()
    return torch.load(path, weights_only=ours)


def same_model(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether all ranks have the same weights under the same names; empty `_extra_state`s aside."""

    def weights(run: dict[str, Any]) -> dict[tuple[str, str, str], torch.Tensor]:
        return {
            (rank, chunk, name): tensor
            for rank, content in run.items()
            for chunk in content
            if chunk.startswith("model")
            for name, tensor in content[chunk].items()
            if tensor is not None
        }

    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(
        tensor.dtype == second[key].dtype and torch.equal(tensor, second[key]) for key, tensor in first.items()
    )


def tensors(run: Path) -> dict[str, bytes]:
    """The canonical tensors' bytes."""
    directory = next(path for path in run.iterdir() if path.is_dir())
    with Files() as files:
        found = legacy.open_source(str(directory), files).tensors
        return {name: blocks.read(tensor, files).tobytes() for name, tensor in found.items()}


def job(name: str, target: LegacyTarget = WHOLE, **more: Any) -> dict[str, Any]:
    sizes = {
        "tensor_parallel": target.tensor_parallel_size,
        "pipeline_parallel": target.pipeline_parallel_size,
        "virtual_pipeline": target.virtual_pipeline_parallel_size,
    }
    record = ARCHITECTURES[name].to_record()
    return {"architecture": record, "padded_vocab_size": PADDED, "tokens": TOKENS, **sizes, **more}


@pytest.fixture(scope="module")
def stock(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every architecture saved by one rank (`NAME-whole`) and by two (`NAME-cut`), with the logits of the first.

    `NAME.tT.npy` are those of models loaded from conversions to tensor parallel size T.
    """
    root = tmp_path_factory.mktemp("legacy")
    jobs = [job(name, save=str(root / f"{name}-whole"), logits=str(root / f"{name}.npy")) for name in ARCHITECTURES]
    jobs += [job(name, target, save=str(root / f"{name}-cut")) for name, target in TARGETS.items()]
    for name, target in itertools.product(("llama", "gpt"), (LegacyTarget(2, 1), LegacyTarget(1, 2, 2))):
        run = str(root / f"{name}.t{target.tensor_parallel_size}")
        jobs.append({"convert": [str(root / f"{name}-cut"), run, dataclasses.astuple(target)]})
        jobs.append(job(name, target, load=run, logits=f"{run}.npy"))
    ranks("legacy_model.py", jobs, world_size=2)
    return root


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_cut_anew_it_is_what_megatron_saves_in_that_layout(stock: Path, name: str, tmp_path: Path) -> None:
    cut = convert(stock / f"{name}-whole", "megatron-legacy", tmp_path / "cut", legacy_target=TARGETS[name])
    assert same_model(contents(cut), contents(stock / f"{name}-cut"))
    whole = convert(stock / f"{name}-cut", "megatron-legacy", tmp_path / "whole")
    assert same_model(contents(whole), contents(stock / f"{name}-whole"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_ways_to_cut_at_once_and_back(stock: Path, name: str, tmp_path: Path) -> None:
    cut = convert(stock / f"{name}-whole", "megatron-legacy", tmp_path / "cut", legacy_target=LegacyTarget(2, 2, 2))
    assert len(contents(cut)) == 4
    assert same_model(contents(convert(cut, "megatron-legacy", tmp_path / "whole")), contents(stock / f"{name}-whole"))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_hugging_face_and_back_is_exact(stock: Path, name: str, tmp_path: Path) -> None:
    model = convert(stock / f"{name}-cut", "hf", tmp_path / "hf")
    back = convert(
        model, "megatron-legacy", tmp_path / "back", legacy_target=dataclasses.replace(TARGETS[name], local_layers=True)
    )
    assert same_model(contents(back), contents(stock / f"{name}-cut"))


def test_transformers_computes_what_megatron_did(stock: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for name in ARCHITECTURES:
        model = AutoModelForCausalLM.from_pretrained(convert(stock / f"{name}-cut", "hf", tmp_path / name))
        with torch.no_grad():
            logits = model(torch.tensor(TOKENS)).logits.numpy()
        expected = numpy.load(stock / f"{name}.npy")[..., :250]
        assert numpy.abs(expected).max() > 1
        assert numpy.abs(logits - expected).max() < CLOSE


@pytest.mark.parametrize(("name", "size"), [("llama", 2), ("llama", 1), ("gpt", 2), ("gpt", 1)])
def test_megatron_loads_the_result_of_every_rank(stock: Path, name: str, size: int) -> None:
    logits = numpy.load(stock / f"{name}.t{size}.npy")
    assert numpy.abs(logits - numpy.load(stock / f"{name}.npy")).max() < CLOSE


def test_arguments_are_those_of_the_new_layout(stock: Path, tmp_path: Path) -> None:
    run = convert(stock / "llama-cut", "megatron-legacy", tmp_path / "run", legacy_target=LegacyTarget(2, 2, 2))
    assert (run / checkpoint_layout.TRACKER).read_text() == "release"
    for content in contents(run).values():
        arguments = content["args"]
        assert (content["checkpoint_version"], content["iteration"]) == (3.0, 0)
        assert (arguments.tensor_model_parallel_size, arguments.pipeline_model_parallel_size) == (2, 2)
        assert (arguments.virtual_pipeline_model_parallel_size, arguments.world_size) == (2, 4)
        assert (arguments.num_layers, arguments.padded_vocab_size, arguments.params_dtype) == (4, PADDED, torch.float32)
        assert (arguments.transformer_impl, arguments.ckpt_format) == ("local", "torch")


def test_names_of_transformer_engine_are_the_default(stock: Path, tmp_path: Path) -> None:
    run = convert(convert(stock / "gpt-whole", "hf", tmp_path / "hf"), "megatron-legacy", tmp_path / "run")
    content = contents(run)["mp_rank_00"]
    assert content["args"].transformer_impl == "transformer_engine"
    assert "decoder.layers.0.self_attention.linear_qkv.layer_norm_bias" in content["model"]
    assert tensors(run) == tensors(stock / "gpt-whole")


def test_the_vocabulary_is_padded_for_the_tensor_parallel_size(
    stock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Megatron pads to a multiple of 128 times the size: rows that are there stay, more of them are zeros."""
    wide = convert(stock / "gpt-cut", "megatron-legacy", tmp_path / "wide", legacy_target=LegacyTarget(4, 1))
    pieces = [content["model"]["embedding.word_embeddings.weight"] for content in contents(wide).values()]
    assert [piece.shape[0] for piece in pieces] == [128] * 4
    embedding = contents(stock / "gpt-whole")["mp_rank_00"]["model"]["embedding.word_embeddings.weight"]
    assert torch.equal(torch.cat(pieces)[:PADDED], embedding)
    assert not torch.cat(pieces)[PADDED:].any()
    assert contents(wide)["mp_rank_00"]["args"].make_vocab_size_divisible_by == 128
    again = convert(wide, "megatron-legacy", tmp_path / "again")
    arguments = contents(again)["mp_rank_00"]["args"]
    assert (arguments.padded_vocab_size, arguments.make_vocab_size_divisible_by) == (512, 512)
    assert "512 rows: Megatron needs --make-vocab-size-divisible-by 512" in capsys.readouterr().err


def test_experts_of_every_rank_are_numbered_through(tmp_path: Path, write_model: Callable[..., Path]) -> None:
    """Two expert ranks without a pipeline, as Megatron-LM names and fills them."""
    architecture = dataclasses.replace(LLAMA, num_experts=4, moe_router_topk=2)
    model = write_model(tmp_path / "mixtral", architecture)
    run = convert(model, "megatron-legacy", tmp_path / "run", legacy_target=LegacyTarget(local_layers=True))
    whole = tensors(run)
    content = contents(run)["mp_rank_00"]
    content["args"].expert_model_parallel_size = 2
    for rank in range(2):
        part = {}
        for name, tensor in content["model"].items():
            before, found, after = name.partition(".local_experts.")
            if found:
                number, _, rest = after.partition(".")
                if int(number) // 2 != rank:
                    continue
                name = f"{before}{found}{int(number) % 2}.{rest}"
            part[name] = tensor
        path = tmp_path / "experts" / "release" / f"mp_rank_00_{rank:03d}" / "model_optim_rng.pt"
        path.parent.mkdir(parents=True)
        torch.save(content | {"model": part}, path)
    assert tensors(tmp_path / "experts") == whole


@pytest.fixture
def cut(stock: Path, tmp_path: Path) -> Path:
    """Four ranks to damage, without the checksums that would tell at once."""
    run = convert(stock / "llama-whole", "megatron-legacy", tmp_path / "cut", legacy_target=LegacyTarget(2, 2))
    (run / "lt-convert.json").unlink()
    (run / "release" / "checksums.json").unlink()
    return run


def fails(source: Path, destination: Path, match: str, error: type[Exception] = BadData, **options: Any) -> None:
    with pytest.raises(error, match=match):
        convert(source, "hf", destination, **options)
    assert not destination.exists()


def test_a_missing_rank_is_named(cut: Path, tmp_path: Path) -> None:
    shutil.rmtree(cut / "release" / "mp_rank_01_001")
    fails(cut, tmp_path / "out", r"tensor, pipeline and expert rank \(1, 1, 0\) is missing")


def test_missing_ranks_at_the_end_are_noticed(cut: Path, tmp_path: Path) -> None:
    for pipeline in range(2):
        shutil.rmtree(cut / "release" / f"mp_rank_01_00{pipeline}")
    fails(cut, tmp_path / "out", "expected 2 tensor ranks")


@pytest.mark.parametrize("bytes_left", [0, 1, 1000, 60_000])
def test_a_truncated_file_is_an_error(cut: Path, tmp_path: Path, bytes_left: int) -> None:
    path = cut / "release" / "mp_rank_01_000" / "model_optim_rng.pt"
    path.write_bytes(path.read_bytes()[:bytes_left])
    fails(cut, tmp_path / "out", "mp_rank_01_000/model_optim_rng.pt")


def edited(cut: Path, rank: str, edit: Callable[[dict[str, Any]], None]) -> None:
    path = cut / "release" / rank / "model_optim_rng.pt"
    content = torch.load(path, weights_only=False)
    edit(content)
    torch.save(content, path)


def test_ranks_that_disagree_are_an_error(cut: Path, tmp_path: Path) -> None:
    edited(cut, "mp_rank_01_000", lambda content: content["model"].pop("decoder.layers.0.input_layernorm.weight"))
    fails(cut, tmp_path / "out", "the other tensor parallel ranks hold other tensors")


def test_unknown_tensors_are_listed(cut: Path, tmp_path: Path) -> None:
    for rank in ("mp_rank_00_001", "mp_rank_01_001"):
        edited(cut, rank, lambda content: content["model"].update({"mtp.layers.0.weight": torch.ones(2)}))
    fails(cut, tmp_path / "out", "this model has no mtp.layers.0.weight")


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda content: content.pop("args"), "holds no Megatron arguments"),
        (lambda content: content.update(checkpoint_version=1.0), "checkpoint version 1.0"),
        (lambda content: content.pop("model"), "holds no model"),
        (lambda content: content.update(model=[1]), "holds no model"),
        (lambda content: content.update(model={"language_model": {"encoder": {}}}), "before megatron-core"),
        (lambda content: content["model"].update({"decoder.layers.0.mlp.linear_fc2.weight": 3}), "holds no plain tensor"),
        (lambda content: setattr(content["args"], "rotary_interleaved", True), "rotary_interleaved"),
    ],
)
def test_other_contents_are_an_error(cut: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], Any], match: str) -> None:
    edited(cut, "mp_rank_00_000", edit)
    fails(cut, tmp_path / "out", match)


def test_nothing_in_a_file_is_executed(cut: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return eval, (f"open({str(tmp_path / 'executed')!r}, 'w')",)

    edited(cut, "mp_rank_00_000", lambda content: content.update(optimizer=Payload()))
    fails(cut, tmp_path / "out", r"builtins\.eval")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("target", "match"),
    [
        (LegacyTarget(3, 1), "tensor parallel size 3 does not divide the 4 attention heads"),
        (LegacyTarget(1, 3), "4 layers do not divide into 3 x 1 pipeline stages"),
        (LegacyTarget(1, 2, 4), "4 layers do not divide into 2 x 4 pipeline stages"),
        (LegacyTarget(1, 1, 2), "virtual pipeline stages need"),
    ],
)
def test_a_parallel_size_that_does_not_divide_the_model_is_refused(
    stock: Path, tmp_path: Path, target: LegacyTarget, match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        convert(stock / "llama-cut", "megatron-legacy", tmp_path / "out", legacy_target=target)
