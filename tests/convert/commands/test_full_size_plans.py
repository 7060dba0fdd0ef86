"""Plans of the largest models that are published: bounded in memory and time, and no tensor is left out."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sparse_models

LIMIT_MIB = 300
# Twelve on two busy cores.
LIMIT_CPU_SECONDS = 60
# As large as an expert's smallest matrix in DeepSeek-V3, so that each expert is a chunk of its own.
CHUNK_BYTES = 30_000_000
COMMAND = """
import atexit, sys, time
from lt_shared import memory
atexit.register(lambda: print(memory.peak_resident_bytes() >> 20, time.process_time(), file=sys.stderr))
from lt_convert.cli import main
main()
"""
# Where Hugging Face's files repeat a tensor.
REPEATED = {"model.layers.61.embed_tokens.weight", "model.layers.61.shared_head.head.weight"}


def dry_run(source: Path, to: str) -> tuple[dict[str, Any], int, float]:
    """The plan, the most memory in MiB and the CPU seconds of the command."""
    command = [sys.executable, "-c", COMMAND, str(source), "--to", to, "-o", str(source.parent / "out"), "--dry-run", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    mebibytes, seconds = done.stderr.split()[-2:]
    return json.loads(done.stdout), int(mebibytes), float(seconds)


def assert_all_is_planned(name: str, tmp_path: Path) -> set[str]:
    """On the way to megatron-dist, of the model in Hugging Face's format that this writes; returns the names of its tensors."""
    values = sparse_models.values(sparse_models.write(name, tmp_path / "hf"))
    there, mebibytes, seconds = dry_run(tmp_path / "hf", "megatron-dist")
    assert mebibytes < LIMIT_MIB
    assert seconds < LIMIT_CPU_SECONDS
    assert {each for tensor in there["tensors"] for each in tensor["from"]} == values - REPEATED
    return values


def test_a_plan_of_a_published_model(tmp_path: Path) -> None:
    """One way: back, its experts are chunks as those of DeepSeek-V3, of which there are more."""
    assert_all_is_planned("qwen3-235b-a22b", tmp_path)


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-120b"])
def test_plans_of_published_models_both_ways(name: str, tmp_path: Path) -> None:
    values = assert_all_is_planned(name, tmp_path)
    arguments = [str(tmp_path / "hf"), str(tmp_path / "dist"), str(CHUNK_BYTES)]
    code = "import sys, sparse_models, pathlib; a, b, c = sys.argv[1:]; p = pathlib.Path"
    code += "; sparse_models.write_distributed(p(a), p(b), int(c))"
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, cwd=Path(sparse_models.__file__).parent)
    back, mebibytes, seconds = dry_run(tmp_path / "dist", "hf")
    assert mebibytes < LIMIT_MIB
    assert seconds < LIMIT_CPU_SECONDS
    assert {tensor["name"] for tensor in back["tensors"]} == values


def test_deepseek_v3_has_as_many_tensors_as_its_published_index() -> None:
    assert sum(1 for _ in sparse_models.deepseek_v3()) == 91_991
