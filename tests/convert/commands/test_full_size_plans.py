"""Plans of the largest models that are published: bounded in memory and time, and no tensor is left out.

DeepSeek-V3 has all of its layers. A sixth of gpt-oss's layers, which are alike, has tighter limits.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import sparse_models

LIMIT_MIB = 300
# Twelve on two busy cores.
LIMIT_CPU_SECONDS = 60
GPT_OSS_LAYERS, GPT_OSS_MIB, GPT_OSS_CPU_SECONDS = 6, 150, 20
# Less than the first matrix of an expert of gpt-oss, so that each expert is a chunk of its own.
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
    """The plan, also of 64 parts, the most memory in MiB and the CPU seconds of the command."""
    command = [sys.executable, "-c", COMMAND, str(source), "--to", to, "-o", str(source.parent / "out"), "--dry-run", "--json"]
    done = subprocess.run([*command, "--shard", "0/64"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    mebibytes, seconds = done.stderr.split()[-2:]
    return json.loads(done.stdout), int(mebibytes), float(seconds)


def assert_all_is_planned(source: Path, values: set[str], limit_mib: int, limit_seconds: float) -> None:
    """Plan the model in Hugging Face's format as megatron-dist: every tensor of `values` is read, within the limits."""
    plan, mebibytes, seconds = dry_run(source, "megatron-dist")
    assert mebibytes < limit_mib
    assert seconds < limit_seconds
    assert {name for tensor in plan["tensors"] for name in tensor["from"]} == values - REPEATED
    reads = [part["read_bytes"] for part in plan["parts"]]
    assert len(reads) == 64
    assert max(reads) <= 1.05 * sum(reads) / 64


def test_all_of_deepseek_v3_is_planned(tmp_path: Path) -> None:
    values = sparse_models.values(sparse_models.write("deepseek-v3", tmp_path / "hf"))
    assert_all_is_planned(tmp_path / "hf", values, LIMIT_MIB, LIMIT_CPU_SECONDS)


def test_gpt_oss_is_planned_both_ways(tmp_path: Path) -> None:
    values = sparse_models.values(sparse_models.write("gpt-oss-120b", tmp_path / "hf", GPT_OSS_LAYERS))
    assert_all_is_planned(tmp_path / "hf", values, GPT_OSS_MIB, GPT_OSS_CPU_SECONDS)
    sparse_models.write_distributed(tmp_path / "hf", tmp_path / "dist", CHUNK_BYTES)
    back, mebibytes, seconds = dry_run(tmp_path / "dist", "hf")
    assert mebibytes < GPT_OSS_MIB
    assert seconds < GPT_OSS_CPU_SECONDS
    assert {tensor["name"] for tensor in back["tensors"]} == values


def test_deepseek_v3_has_as_many_tensors_as_its_published_index() -> None:
    assert sum(1 for _ in sparse_models.deepseek_v3()) == 91_991
