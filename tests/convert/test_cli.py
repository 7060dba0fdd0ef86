"""The command as users run it: examples, manifests, exit codes, and what a killed or failing one leaves behind."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lt_convert import cli
from lt_shared import checkpoint_layout, huggingface
from lt_shared.architecture import Architecture
from lt_shared.console import ToolError

BINARIES = Path(sys.executable).parent
README = Path(__file__).parents[2] / "tools" / "convert" / "README.md"


def run(*arguments: object, stdin: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    command = [str(BINARIES / "lt-convert"), *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture
def place(megatron_checkpoints: dict[str, Any], hf_checkpoints: dict[str, Any], tmp_path: Path) -> Path:
    """A directory with the checkpoints that the examples name."""
    shutil.copytree(megatron_checkpoints["grouped"].directory, tmp_path / "run1" / "iter_0001000")
    checkpoint_layout.write_tracker(tmp_path / "run1", 1000)
    shutil.copytree(hf_checkpoints["scaled"].directory, tmp_path / "Llama-3.2-1B")
    return tmp_path


EXAMPLES = cli.EXAMPLES.strip().splitlines()
INDENTED = [line.strip() for line in README.read_text().splitlines() if line.startswith("    lt-convert")]


@pytest.mark.parametrize("example", dict.fromkeys(EXAMPLES + INDENTED))
def test_examples(example: str, place: Path) -> None:
    """Word for word, but for the trainer before the pipe: its manifest stands in for it."""
    trained = {"v": 1, "kind": "checkpoint", "path": str(place / "run1" / "iter_0001000"), "format": "megatron-dist"}
    (place / "manifest").write_text(f'{json.dumps(trained)}\n{{"v":1,"kind":"end","count":1}}\n')
    _, pipe, ours = example.rpartition(" | ")
    command = f"set -o pipefail; cat manifest | {ours}" if pipe else example
    environment = os.environ | {"PATH": f"{BINARIES}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if "--dry-run" not in example:
        first, last = map(json.loads, done.stdout.splitlines())
        assert (first["kind"], last) == ("checkpoint", {"v": 1, "kind": "end", "count": 1})
        assert Path(first["path"]).is_dir()


def test_readme_shows_the_help() -> None:
    assert run("--help", env=os.environ | {"COLUMNS": "80"}).stdout.rstrip() in README.read_text()


def test_output_is_a_manifest_and_the_same_again(place: Path) -> None:
    first = run(place / "run1", "--to", "hf", "-o", place / "hf")
    checkpoint = {"v": 1, "kind": "checkpoint", "path": str(place / "hf"), "format": "hf", "iteration": 1000}
    assert [json.loads(line) for line in first.stdout.splitlines()] == [checkpoint, {"v": 1, "kind": "end", "count": 1}]
    again = run(place / "run1", "--to", "hf", "-o", place / "hf")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert again.stderr == f"lt-convert: {place / 'hf'}: up to date\n"
    plain = run(place / "run1", "--to", "hf", "-o", place / "hf", "--plain")
    assert plain.stdout == f"{place / 'hf'}\n"


def test_dry_run_prints_every_tensor_and_writes_nothing(place: Path) -> None:
    before = sorted(place.rglob("*"))
    done = run(place / "Llama-3.2-1B", "--to", "megatron-dist", "-o", place / "run", "--dry-run", "--dtype", "bfloat16")
    plan = json.loads(done.stdout)
    assert sorted(place.rglob("*")) == before
    assert plan["bytes"] == sum(tensor["bytes"] for tensor in plan["tensors"])
    assert plan["bytes"] == 2 * Architecture.from_record(plan["architecture"]).parameters()
    found = next(tensor for tensor in plan["tensors"] if tensor["name"].endswith("layers.1.self_attention.linear_qkv.weight"))
    assert found["operation"] == "interleave query groups"
    assert found["from"] == [f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv"]
    assert (found["dtype"], found["shape"]) == ("bfloat16", [6 * 16, 32])


def fails(code: int, *arguments: object, **options: Any) -> str:
    done = run(*arguments, **options)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("lt-convert: error: ")
    assert len(done.stderr.splitlines()) <= 2
    return done.stderr


def test_exit_codes(place: Path) -> None:
    hf, out = place / "Llama-3.2-1B", place / "out"
    assert "no such directory" in fails(66, place / "gone", "--to", "hf", "-o", out)
    assert "the manifest is empty" in fails(66, "-", "--to", "hf", "-o", out)
    assert "in the format hf already" in fails(2, hf, "--to", "hf", "-o", out)
    assert "is not one of" in fails(2, hf, "--to", "onnx", "-o", out)
    assert "not empty" in fails(73, hf, "--to", "megatron-dist", "-o", place / "run1")
    assert "is not a directory" in fails(73, hf, "--to", "megatron-dist", "-o", hf / "config.json")
    assert "not a directory" in fails(73, hf, "--to", "megatron-dist", "-o", hf / "config.json" / "out")
    (place / "run1" / "iter_0001000" / "__0_0.distcp").unlink()
    before = sorted(place.rglob("*"))
    assert "__0_0.distcp: missing" in fails(65, place / "run1", "--to", "hf", "-o", out)
    assert sorted(place.rglob("*")) == before


def test_stdin_in_a_rank_is_refused(place: Path) -> None:
    assert "RANK" in fails(2, "-", "--to", "hf", "-o", place / "out", env=os.environ | {"RANK": "0"})


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model of 50 MB, enough to be killed in the middle."""
    architecture = Architecture("large", "llama", 4, 512, 2048, 8, 8, 8000, 512)
    directory = tmp_path / "large"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(huggingface.to_config(architecture, "float16")))
    from lt_convert.llama import LLAMA
    from lt_convert.mapping import Model

    shapes = LLAMA.canonical(Model(architecture, architecture.vocab_size))
    save_file({name: torch.zeros(shape, dtype=torch.float16) for name, shape in shapes.items()}, directory / "model.safetensors")
    return directory


def kill_when(sign: str, place: Path, *arguments: object) -> None:
    """Start the command and kill it with SIGKILL as soon as a file of the pattern `sign` is there and has content."""
    child = subprocess.Popen([BINARIES / "lt-convert", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        while child.poll() is None and not any(path.stat().st_size > 0 for path in place.glob(sign)):
            time.sleep(0.0005)
        child.send_signal(signal.SIGKILL)
        stdout, _ = child.communicate()
    finally:
        child.kill()
    assert child.returncode == -signal.SIGKILL, "it ended before it could be killed"
    assert stdout == b""


def test_killed_conversion_leaves_nothing_that_is_accepted(large: Path) -> None:
    place, megatron, hf = large.parent, large.parent / "run", large.parent / "hf"
    kill_when(".run.partial/release/.*.distcp.partial", place, large, "--to", "megatron-dist", "-o", megatron)
    assert not megatron.exists()
    with pytest.raises(ToolError):
        checkpoint_layout.resolve(place / ".run.partial")
    with pytest.raises(ToolError):
        checkpoint_layout.resolve(place / ".run.partial" / "release")
    assert run(large, "--to", "megatron-dist", "-o", megatron).returncode == 0
    kill_when(".hf.partial/.model.safetensors.partial", place, megatron, "--to", "hf", "-o", hf)
    assert not hf.exists()
    assert not (place / ".hf.partial" / "config.json").exists()
    assert run(place / ".hf.partial", "--to", "megatron-dist", "-o", place / "x").returncode == 66
    assert run(megatron, "--to", "hf", "-o", hf).returncode == 0
    kill_when(".hf.partial/.model.safetensors.partial", place, megatron, "--to", "hf", "-o", hf, "--force")
    assert run(megatron, "--to", "hf", "-o", hf).stderr.endswith("up to date\n"), "the old result is still there"
    assert run(megatron, "--to", "hf", "-o", hf, "--force").returncode == 0
    assert load_file(hf / "model.safetensors").keys() == load_file(large / "model.safetensors").keys()
    assert not list(place.glob(".*"))


@pytest.mark.parametrize("to", ["hf", "megatron-dist"])
def test_full_disk_is_an_io_error_that_leaves_nothing(to: str, large: Path) -> None:
    """A limit on the size of a file stands in for the disk: the write fails in the same place."""
    source = large
    if to == "hf":
        source = large.parent / "run"
        assert run(large, "--to", "megatron-dist", "-o", source).returncode == 0
    before = sorted(large.parent.rglob("*"))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))

    fails(74, source, "--to", to, "-o", large.parent / "out", preexec_fn=limit)
    assert sorted(large.parent.rglob("*")) == before
