"""`lt_convert.convert`, `inspect` and `verify`: what the commands print, and their errors, from Python."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import nursery
import pytest
from averaged_models import write

import lt_convert
from lt_shared import BadData, CannotCreate, NoInput, ToolError, UsageError
from lt_shared.contracts import checkpoint_layout
from lt_shared.contracts.manifest import record_of
from lt_shared.models.architecture import Architecture


def run(*arguments: object) -> Any:
    command = [nursery.light_python(), "-m", "lt_convert", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[0])


@pytest.fixture
def model(models: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(models["grouped"], tmp_path / "model"))


@pytest.fixture
def trained(model: Path, tmp_path: Path) -> Path:
    """A run whose newest checkpoint is of step 1000."""
    lt_convert.convert(model, tmp_path / "release", to="megatron-dist")
    shutil.copytree(tmp_path / "release" / "release", tmp_path / "run" / "iter_0001000")
    checkpoint_layout.write_tracker(tmp_path / "run", 1000)
    return tmp_path / "run"


def test_it_returns_what_the_command_prints(
    trained: Path,
    model: Path,
    tmp_path: Path,
    stored_tensors: Callable[[Path], dict[str, Any]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    made = lt_convert.convert(trained, tmp_path / "hf")
    assert capfd.readouterr().out == ""
    assert made == lt_convert.Checkpoint(str(tmp_path / "hf"), "hf", 1000)
    assert record_of(made) == run(trained, "--to", "hf", "-o", tmp_path / "hf")
    assert stored_tensors(tmp_path / "hf") == stored_tensors(model)


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"to": "torchtitan", "dtype": "bfloat16"}, ("--to", "torchtitan", "--dtype", "bfloat16")),
        (
            {"to": "megatron-dist", "no_optimizer": True, "no_verify": True},
            ("--to", "megatron-dist", "--no-optimizer", "--no-verify"),
        ),
        (
            {"to": "megatron-legacy", "target_tensor_parallel_size": 2, "target_transformer_impl": "local"},
            ("--to", "megatron-legacy", "--target-tensor-parallel-size", "2", "--target-transformer-impl", "local"),
        ),
        (
            {"to": "megatron-legacy", "target_pipeline_parallel_size": np.int64(3)},
            ("--to", "megatron-legacy", "--target-pipeline-parallel-size", "3"),
        ),
    ],
    ids=lambda value: value.get("to") if isinstance(value, dict) else "",
)
def test_options_are_those_of_the_command(model: Path, tmp_path: Path, options: Any, flags: tuple[str, ...]) -> None:
    """The command finds the result up to date, which it is with the same options only."""
    lt_convert.convert(model, tmp_path / "made", **options)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "made").rglob("*")}
    run(model, *flags, "-o", tmp_path / "made")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "made").rglob("*")} == before


def test_the_same_call_again_and_from_threads(model: Path, tmp_path: Path) -> None:
    first = lt_convert.convert(model, tmp_path / "again", to="torchtitan")
    assert lt_convert.convert(str(model), str(tmp_path / "again"), "torchtitan") == first
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda number: lt_convert.convert(model, tmp_path / f"t{number}", to="torchtitan"), range(4)))
    assert [Path(one.path).name for one in made] == ["t0", "t1", "t2", "t3"]
    assert lt_convert.verify(tmp_path / "t0", tmp_path / "t3")["same"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "onnx"}, "to 'onnx' is not one of hf, megatron-dist, megatron-hybrid, megatron-legacy, torchtitan"),
        ({"to": "torchtitan", "dtype": "int8"}, "dtype 'int8' is not one of float32, bfloat16, float16"),
        ({"to": "megatron-legacy", "target_tensor_parallel_size": 0}, "target_tensor_parallel_size 0 is less than 1"),
        (
            {"to": "megatron-legacy", "target_virtual_pipeline_parallel_size": 1},
            "target_virtual_pipeline_parallel_size 1 is less than 2",
        ),
        (
            {"to": "megatron-legacy", "target_transformer_impl": "x"},
            "target_transformer_impl 'x' is not one of transformer_engine, local",
        ),
        (
            {"to": "torchtitan", "target_tensor_parallel_size": 2},
            "the options target_* are for to='megatron-legacy', not 'torchtitan'",
        ),
        ({}, "is in the format hf already"),
    ],
    ids=str,
)
def test_options_that_cannot_be(model: Path, tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        lt_convert.convert(model, tmp_path / "made", **options)
    assert message in str(raised.value)
    assert not (tmp_path / "made").exists()


def test_places_that_cannot_be(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for source in ("gone", "-", "@list"):
        with pytest.raises(NoInput):
            lt_convert.convert(source, "made", to="torchtitan")
    with pytest.raises(UsageError, match="an empty path"):
        lt_convert.convert("", "made")
    with pytest.raises(UsageError, match="an empty path"):
        lt_convert.convert(model, "", to="torchtitan")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    with pytest.raises(CannotCreate):
        lt_convert.convert(model, "full", to="torchtitan")
    assert sorted(os.listdir(tmp_path)) == ["full", "model"]
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(BadData):
        lt_convert.convert(model, "made", to="torchtitan")


def test_a_place_that_cannot_be_created(model: Path) -> None:
    with pytest.raises((ToolError, NotADirectoryError)):
        lt_convert.convert(model, model / "config.json" / "made", to="torchtitan")


def test_inspect_and_verify_return_what_the_commands_print(trained: Path, model: Path, tmp_path: Path) -> None:
    made = lt_convert.convert(trained, tmp_path / "hf")
    assert lt_convert.inspect(trained) == run("inspect", trained, "--json")
    assert lt_convert.verify(made.path) == run("verify", made.path, "--json")
    assert lt_convert.verify(trained, model) == run("verify", trained, model, "--json")
    assert lt_convert.verify(made.path)["problems"] == [] and lt_convert.verify(trained, made.path)["same"] is True


def test_verify_finds_what_has_changed(trained: Path, tmp_path: Path) -> None:
    made = Path(lt_convert.convert(trained, tmp_path / "hf").path)
    with (made / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert len(lt_convert.verify(made)["problems"]) == 1
    assert lt_convert.verify(trained, made)["same"] is False
    with pytest.raises(UsageError, match="logits compares two checkpoints"):
        lt_convert.verify(made, logits=True)
    with pytest.raises(NoInput):
        lt_convert.verify(trained)


INTERRUPTED = """
import os, signal, sys
import lt_convert
from lt_convert.engine import output_writer
from lt_shared.console import progress

handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
advance = progress.Progress.advance


def interrupt(self, amount):
    os.kill(os.getpid(), signal.SIGINT)
    advance(self, amount)


progress.Progress.advance = interrupt
try:
    lt_convert.convert(sys.argv[1], sys.argv[2], to="torchtitan")
except KeyboardInterrupt:
    print("interrupted", flush=True)
progress.Progress.advance = advance
print(lt_convert.convert(sys.argv[1], sys.argv[2], to="torchtitan").format)
assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
"""


def test_an_interrupted_call_is_resumed_by_the_same_one(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, model, tmp_path / "made"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "interrupted\ntorchtitan\n"), done.stderr
    assert lt_convert.verify(tmp_path / "made")["problems"] == []
    assert lt_convert.verify(model, tmp_path / "made")["same"]


def test_it_works_with_all_standard_streams_closed(model: Path, tmp_path: Path) -> None:
    code = f"import lt_convert; lt_convert.convert({str(model)!r}, {str(tmp_path / 'made')!r}, to='torchtitan')"
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, code]
    assert subprocess.run(command, timeout=120).returncode == 0
    assert lt_convert.verify(tmp_path / "made")["problems"] == []


def test_the_environment_changes_nothing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LT_CONVERT_DTYPE", "bfloat16")
    lt_convert.convert(model, tmp_path / "made", to="torchtitan")
    assert list(lt_convert.inspect(tmp_path / "made")["dtypes"]) == ["float32"]


def test_what_can_be_merged(model: Path, trained: Path, tmp_path: Path) -> None:
    merged = lt_convert.merge({model: 1, str(trained): 1}, tmp_path / "merged")
    assert merged == lt_convert.Checkpoint(str(tmp_path / "merged"), "hf", 1000)
    assert record_of(merged) == run("merge", f"{model}=0.5", f"{trained}=0.5", "--to", "hf", "-o", tmp_path / "merged")
    assert lt_convert.verify(model, merged.path)["same"]
    for sources, options in (
        ([], {}),
        ([model], {}),
        ([model, trained], {"last": 2}),
        ({trained: 1}, {"last": 2}),
        (trained, {"last": 1}),
    ):
        with pytest.raises(UsageError):
            lt_convert.merge(sources, tmp_path / "other", **options)
    with pytest.raises(NoInput, match="--last asks for 2"):
        lt_convert.merge(trained, tmp_path / "other", last=2)
    assert not (tmp_path / "other").exists()


TINY = Architecture("tiny", "llama", 3, 32, 88, 4, 2, 250, 64)


@pytest.fixture
def tuned(tmp_path: Path) -> list[Path]:
    """A base and two models that were trained from it."""
    return [write(tmp_path / name, TINY, seed, "bfloat16") for seed, name in enumerate(("base", "one", "two"), 1)]


def test_merge_methods_are_those_of_the_command(tuned: list[Path], tmp_path: Path) -> None:
    """The command finds each result up to date, which it is with the same options only."""
    base, one, two = tuned
    models = [{"model": str(path), "parameters": {"weight": 1}} for path in (one, two)]
    (tmp_path / "merge.yaml").write_text(json.dumps({"merge_method": "linear", "models": models}))
    filters = [{"filter": "mlp", "value": (0, np.float32(0.5), 1)}, {"value": 0.25}]
    words = "t=[{filter: mlp, value: [0, 0.5, 1]}, {value: 0.25}]"
    dare: dict[str, Any] = {"method": "dare_ties", "base": base, "parameters": {"density": 0.5}, "seed": np.int64(3)}
    flags = ("--method", "dare_ties", "--base", base, "-p", "density=0.5", "--seed", "3")
    cases: list[tuple[Any, dict[str, Any], Sequence[object]]] = [
        ([one, two], {"method": "slerp", "parameters": {"t": filters}}, (one, two, "--method", "slerp", "-p", words)),
        ({one: 0.5, two: 1}, dare, (f"{one}=0.5", f"{two}=1", *flags)),
        ((), {"config": tmp_path / "merge.yaml"}, ("--config", tmp_path / "merge.yaml")),
    ]
    for number, (sources, options, arguments) in enumerate(cases):
        merged = lt_convert.merge(sources, tmp_path / str(number), **options)
        written = (tmp_path / str(number) / "model.safetensors").stat().st_mtime_ns
        assert record_of(merged) == run("merge", *arguments, "--to", "hf", "-o", tmp_path / str(number))
        assert (tmp_path / str(number) / "model.safetensors").stat().st_mtime_ns == written


def test_an_adapter_is_merged_into_one_model(tuned: list[Path], tmp_path: Path) -> None:
    base, one, _ = tuned
    run("extract", one, "--base", base, "--rank", "32", "-o", tmp_path / "lora")
    merged = lt_convert.merge(base, tmp_path / "merged", adapters=tmp_path / "lora")
    assert record_of(merged) == run("merge", base, "--adapter", tmp_path / "lora", "--to", "hf", "-o", tmp_path / "merged")
    assert not lt_convert.verify(base, merged.path)["same"]


def test_merges_that_the_command_refuses(tuned: list[Path], tmp_path: Path) -> None:
    base, one, two = tuned
    for sources, options, message in (
        ([one, two], {"method": "ties"}, "needs a base model"),
        ([one, two], {"parameters": {"t": 1}}, "for merges by a method"),
        ([one, two], {"method": "slerp", "parameters": {"t": object()}}, "not numbers, lists and dicts"),
        ([one, two], {"method": "mean"}, "the merge method mean is unknown"),
        ([one, two], {"method": "slerp", "parameters": {"t": 1}, "seed": -1}, "seed -1 is less than 0"),
        ([one, two], {"config": "merge.yaml"}, "names models, method and parameters"),
        ([one, two], {"adapters": [base]}, "--adapter is for one model"),
    ):
        with pytest.raises(UsageError, match=message):
            lt_convert.merge(sources, tmp_path / "merged", **options)  # type: ignore[arg-type]
