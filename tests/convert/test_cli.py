"""The command as users run it: examples, manifests, exit codes, and what a killed or failing one leaves behind."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nursery
import pytest
import tokenizers
from safetensors.torch import load_file, save_file

from lt_convert import cli
from lt_shared.contracts import checkpoint_layout
from lt_shared.models.architecture import Architecture

BINARIES = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "tools/convert/README.md", *(ROOT / f"docs/guides/{name}.md" for name in ("conversion", "merging", "evaluation")))


def run(*arguments: object, stdin: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    command = [nursery.light_python(), "-m", "lt_convert", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def made(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the checkpoints that the examples name."""
    place = tmp_path_factory.mktemp("made")
    shutil.copytree(models["scaled"], place / "Llama-3.2-1B")
    assert run(models["grouped"], "--to", "megatron-dist", "-o", place / "grouped").returncode == 0
    for iteration in (800, 900, 1000):
        shutil.copytree(place / "grouped" / "release", checkpoint_layout.iteration_directory(place / "run1", iteration))
    checkpoint_layout.write_tracker(place / "run1", 1000)
    shutil.rmtree(place / "grouped")
    assert run(place / "run1", "--to", "hf", "-o", place / "run1-hf").returncode == 0
    for name in ("base", "math", "code", "chat", "tuned"):
        shutil.copytree(place / "Llama-3.2-1B", place / name)
    assert run("extract", place / "tuned", "--base", place / "base", "--rank", "2", "-o", place / "lora").returncode == 0
    (place / "merge.yaml").write_text(
        "merge_method: slerp\nbase_model: math\nmodels: [{model: math}, {model: code}]\nparameters: {t: 0.4}\n"
    )
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


EXAMPLES = [
    line
    for text in (
        cli.EXAMPLES,
        cli.INSPECT_EXAMPLES,
        cli.VERIFY_EXAMPLES,
        cli.merge_command.EXAMPLES,
        cli.extract_command.EXAMPLES,
        cli.follow_command.EXAMPLES,
    )
    for line in text.strip().splitlines()
]
INDENTED = [
    line.strip()
    for page in PAGES
    for line in re.sub(r"\\\n +", "", page.read_text()).splitlines()
    if re.match("    (lt-train .* [|] )?lt-convert ", line)
]


@pytest.mark.parametrize("example", dict.fromkeys(EXAMPLES + INDENTED))
def test_examples(example: str, place: Path) -> None:
    """Word for word, but for the trainer before the pipe: its manifest stands in for it. What follows for ever does so once."""
    trained = {"v": 1, "kind": "checkpoint", "path": str(place / "run1" / "iter_0001000"), "format": "megatron-dist"}
    (place / "manifest").write_text(f'{json.dumps(trained)}\n{{"v":1,"kind":"end","count":1}}\n')
    _, pipe, ours = example.rpartition(" | ")
    command = f"set -o pipefail; cat manifest | {ours}" if pipe else example
    if command.startswith("lt-convert follow") and "--once" not in command:
        command += " --once"
    if example.startswith("lt-convert extract"):
        shutil.rmtree(place / "lora")
    if not example.startswith(("lt-convert verify", "lt-convert merge")):
        shutil.rmtree(place / "run1-hf")
    if "--tokenizer-source" in example:
        for name in ("math", "chat"):
            tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, name: 1}, [])).save(str(place / name / "tokenizer.json"))
    environment = os.environ | {"PATH": f"{nursery.light_programs()}:{BINARIES}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if part := re.search(r"--shard (\d)/2", example):
        # No part writes a manifest until both have finished.
        assert f"part {part[1]} of 2 has finished; not finished: part {1 - int(part[1])} of 2" in done.stderr
        assert done.stdout == ""
        return
    assert done.stdout
    if " -o " in example and "--dry-run" not in example:
        *checkpoints, last = map(json.loads, done.stdout.splitlines())
        assert last == {"v": 1, "kind": "end", "count": len(checkpoints)}
        assert all(each["kind"] == "checkpoint" for each in checkpoints)
        assert all(Path(each["path"]).is_dir() for each in checkpoints[-2:]), "with --keep-last 2"


def test_output_is_a_manifest_and_the_same_again(place: Path) -> None:
    first = run(place / "run1", "--to", "hf", "-o", place / "hf")
    checkpoint = {"v": 1, "kind": "checkpoint", "path": str(place / "hf"), "format": "hf", "iteration": 1000}
    assert [json.loads(line) for line in first.stdout.splitlines()] == [checkpoint, {"v": 1, "kind": "end", "count": 1}]
    again = run(place / "run1", "--to", "hf", "-o", place / "hf")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert again.stderr == f"lt-convert: {place / 'hf'}: up to date\n"
    plain = run(place / "run1", "--to", "hf", "-o", place / "hf", "--plain")
    assert plain.stdout == f"{place / 'hf'}\n"


def test_several_checkpoints_in_one_call(place: Path) -> None:
    done = run(place / "run1", place / "Llama-3.2-1B", "--to", "torchtitan", "-o", place / "out", "--plain")
    assert done.stdout.splitlines() == [f"{place}/out/run1", f"{place}/out/Llama-3.2-1B"], done.stderr
    assert run("verify", place / "out" / "Llama-3.2-1B", place / "Llama-3.2-1B").returncode == 0


def test_dry_run_prints_every_tensor_and_writes_nothing(place: Path) -> None:
    before = sorted(place.rglob("*"))
    arguments = (place / "Llama-3.2-1B", "--to", "megatron-dist", "-o", place / "run", "--dtype", "bfloat16")
    done = run(*arguments, "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert sorted(place.rglob("*")) == before
    assert sum(tensor["bytes"] for tensor in plan["tensors"]) == 2 * Architecture.from_record(plan["architecture"]).parameters()
    found = next(tensor for tensor in plan["tensors"] if tensor["name"].endswith("layers.1.self_attention.linear_qkv.weight"))
    assert found["operation"] == "interleave query groups, cast from float32"
    assert found["from"] == [f"model.layers.1.self_attn.{part}_proj.weight" for part in "qkv"]
    assert (found["dtype"], found["shape"]) == ("bfloat16", [1, 8 * 16, 32])
    table = run(*arguments, "--dry-run").stdout
    assert "interleave query" in table
    assert "parameters, 0.000 GB on disk" in table
    assert run(*arguments).returncode == 0
    files = {str(path.relative_to(place / "run")): path.stat().st_size for path in (place / "run").rglob("*") if path.is_file()}
    del files["lt-convert.json"]
    assert files == {file["name"]: file["bytes"] for file in plan["files"]}
    assert plan["bytes"] == sum(files.values())


def test_a_dry_run_reads_no_values(models: dict[str, Path], tmp_path: Path) -> None:
    """A conversion compares tensors that the configuration ties, a dry run does not: the embeddings of DeepSeek-V3 are 7 GB."""
    source = shutil.copytree(models["tied"], tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    arguments = (source, "--to", "megatron-dist", "-o", tmp_path / "run")
    plan = run(*arguments, "--dry-run", "--json")
    assert plan.returncode == 0, plan.stderr
    assert "lm_head.weight differs from model.embed_tokens.weight" in fails(65, *arguments)


def test_the_plan_of_a_merge_is_exact_and_writes_nothing(place: Path) -> None:
    before = sorted(place.rglob("*"))
    arguments = ("merge", place / "run1", "--last", "2", "--weights", "minus-sqrt", "--to", "torchtitan", "-o", place / "merged")
    plan = json.loads(run(*arguments, "--dry-run", "--json").stdout)
    table = run(*arguments, "--dry-run").stdout
    assert sorted(place.rglob("*")) == before
    assert [(Path(one["path"]).name, one["iteration"], round(one["weight"], 4)) for one in plan["sources"]] == [
        ("iter_0000900", 900, 0.7071),
        ("iter_0001000", 1000, 0.2929),
    ]
    assert table.startswith(f"0.707107 of {place}/run1/iter_0000900 (megatron-dist, iteration 900)\n")
    assert {tensor["operation"].partition(",")[0] for tensor in plan["tensors"]} == {"average of 2"}
    done = run(*arguments)
    assert json.loads(done.stdout.splitlines()[0])["iteration"] == 1000
    files = {str(path.relative_to(place / "merged")): path.stat().st_size for path in (place / "merged").iterdir()}
    del files["lt-convert.json"]
    assert files == {file["name"]: file["bytes"] for file in plan["files"]}
    assert run(*arguments, "--plain").stdout == f"{place}/merged\n"
    assert "one checkpoint, and a merge takes at least two" in fails(2, "merge", place / "run1", "--to", "hf", "-o", place / "x")
    assert "3 complete checkpoints" in fails(66, "merge", place / "run1", "--last", "4", "--to", "hf", "-o", place / "x")


def test_inspect_and_verify(place: Path) -> None:
    record = json.loads(run("inspect", place / "run1", "--json").stdout)
    assert (record["format"], record["iteration"]) == ("megatron-dist", 1000)
    assert "3 layers" not in run("inspect", place / "run1").stdout
    assert run("verify", place / "run1-hf").returncode == 0
    path = place / "run1-hf" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    changed = run("verify", place / "run1-hf", "--json")
    assert changed.returncode == 1
    assert len(json.loads(changed.stdout)["problems"]) == 1
    differs = run("verify", place / "run1", place / "run1-hf")
    assert differs.returncode == 1
    assert differs.stdout.splitlines()[-1].endswith("(hf): 1 of 30 tensors differ")
    assert "compares two checkpoints" in fails(2, "verify", place / "run1-hf", "--logits")


def fails(code: int, *arguments: object, **options: Any) -> str:
    done = run(*arguments, **options)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("lt-convert: error: ")
    assert len(done.stderr.splitlines()) <= 2
    return done.stderr


def test_exit_codes(place: Path) -> None:
    hf, out = place / "Llama-3.2-1B", place / "out"
    assert "no such directory" in fails(66, place / "gone", "--to", "hf", "-o", out)
    assert "the manifest is empty" in fails(66, "-", "--to", "hf", "-o", out)
    assert "in the format hf already" in fails(2, hf, "--to", "hf", "-o", out)
    assert "is not one of" in fails(2, hf, "--to", "onnx", "-o", out)
    assert "several checkpoints would go" in fails(2, hf, f"{hf}/", "--to", "torchtitan", "-o", out)
    assert "not empty" in fails(73, hf, "--to", "megatron-dist", "-o", place / "run1")
    assert "is not a directory" in fails(73, hf, "--to", "megatron-dist", "-o", hf / "config.json")
    assert "not a directory" in fails(73, hf, "--to", "megatron-dist", "-o", hf / "config.json" / "out")
    (place / "run1" / "iter_0001000" / "__0_0.distcp").unlink()
    before = sorted(place.rglob("*"))
    assert "__0_0.distcp: missing" in fails(65, place / "run1", "--to", "hf", "-o", out)
    assert sorted(place.rglob("*")) == before


def test_options_without_effect_are_refused(place: Path) -> None:
    hf, out = place / "Llama-3.2-1B", place / "out"
    assert "are for --to megatron-legacy" in fails(2, hf, "--to", "torchtitan", "-o", out, "--target-tensor-parallel-size", "2")
    assert "--json shows the plan" in fails(2, hf, "--to", "torchtitan", "-o", out, "--json")


def test_several_are_planned_before_the_first_is_written(place: Path) -> None:
    (place / "empty").mkdir()
    assert "no checkpoint" in fails(66, place / "Llama-3.2-1B", place / "empty", "--to", "torchtitan", "-o", place / "out")
    assert not (place / "out").exists()


def test_a_plan_that_nobody_reads_on(place: Path) -> None:
    command = f"{BINARIES}/lt-convert {place}/Llama-3.2-1B --to torchtitan -o {place}/out --dry-run"
    done = subprocess.run(["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True, text=True)
    assert done.returncode in (0, 141)
    assert done.stderr == ""


def test_stdin_in_a_rank_is_refused(place: Path) -> None:
    assert "RANK" in fails(2, "-", "--to", "hf", "-o", place / "out", env=os.environ | {"RANK": "0"})


@pytest.fixture(scope="module")
def large(write_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 50 MB, enough to be killed in the middle."""
    architecture = Architecture("large", "llama", 4, 512, 2048, 8, 8, 8000, 512)
    return write_model(tmp_path_factory.mktemp("large") / "large", architecture, "float16")


def kill_when(sign: str, place: Path, *arguments: object) -> None:
    """Start the command and kill it with SIGKILL as soon as a file of the pattern `sign` is there and has content."""
    child = subprocess.Popen([BINARIES / "lt-convert", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        while child.poll() is None and not any(path.stat().st_blocks > 0 for path in place.glob(sign)):
            time.sleep(0.0005)
        child.send_signal(signal.SIGKILL)
        stdout, _ = child.communicate()
    finally:
        child.kill()
    assert child.returncode == -signal.SIGKILL, "it ended before it could be killed"
    assert stdout == b""


def test_killed_conversion_leaves_nothing_that_is_accepted(large: Path, tmp_path: Path) -> None:
    megatron, hf = tmp_path / "run", tmp_path / "hf"
    kill_when(".run.partial/release/*.distcp", tmp_path, large, "--to", "megatron-dist", "-o", megatron)
    assert not megatron.exists()
    for left in (tmp_path / ".run.partial", tmp_path / ".run.partial" / "release"):
        assert run(left, "--to", "hf", "-o", tmp_path / "x").returncode in (65, 66)
    assert run(large, "--to", "megatron-dist", "-o", megatron).returncode == 0
    kill_when(".hf.partial/model.safetensors", tmp_path, megatron, "--to", "hf", "-o", hf)
    assert not hf.exists()
    assert not (tmp_path / ".hf.partial" / "config.json").exists()
    assert run(tmp_path / ".hf.partial", "--to", "megatron-dist", "-o", tmp_path / "x").returncode == 65
    assert run(megatron, "--to", "hf", "-o", hf).returncode == 0
    kill_when(".hf.partial/model.safetensors", tmp_path, megatron, "--to", "hf", "-o", hf, "--force")
    assert run(megatron, "--to", "hf", "-o", hf).stderr.endswith("up to date\n"), "the old result is still there"
    assert run(megatron, "--to", "hf", "-o", hf, "--force").returncode == 0
    assert load_file(hf / "model.safetensors").keys() == load_file(large / "model.safetensors").keys()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("to", ["megatron-dist", "torchtitan"])
def test_full_disk_is_an_io_error_and_the_same_command_goes_on(to: str, large: Path, tmp_path: Path) -> None:
    """A limit on the size of a file stands in for the disk: the write fails in the same place."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))

    fails(74, large, "--to", to, "-o", tmp_path / "out", preexec_fn=limit)
    assert not (tmp_path / "out").exists()
    assert run(large, "--to", to, "-o", tmp_path / "out").returncode == 0
    assert run("verify", large, tmp_path / "out").returncode == 0
