"""docs/guides/evaluation.md: lt-convert follows a run, a stand-in for lm_eval scores its checkpoints, lt-monitor shows them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import documented_blocks
import pytest
import torch
from safetensors.torch import save_file

import lt_convert
from lt_convert.weights import families
from lt_convert.weights.mapping import Model
from lt_shared.contracts import checkpoint_layout
from lt_shared.models import huggingface
from lt_shared.models.architecture import Architecture

PAGE = (documented_blocks.ROOT / "docs/guides/evaluation.md").read_text()
ARCHITECTURE = Architecture("evaluated", "llama", 1, 32, 88, 4, 2, 250, 64)
# What `lm_eval` of version 0.4.9 does with these options: results in a directory that has the model's path as its name.
HARNESS = """
import argparse, datetime, json, pathlib, re, time
parser = argparse.ArgumentParser()
for option in ("--model", "--model_args", "--tasks", "--output_path"):
    parser.add_argument(option, required=True)
options = parser.parse_args()
path = options.model_args.removeprefix("pretrained=")
assert (pathlib.Path(path) / "model.safetensors").is_file() and options.model == "hf"
score = int(path[-4:]) / 10_000
results = {
    task: {"name": task, "alias": task, "sample_len": 100, "acc,none": score, "acc_stderr,none": 0.01,
           "acc_norm,none": score + 0.1, "acc_norm_stderr,none": "N/A"}
    for task in options.tasks.split(",")
}
place = pathlib.Path(options.output_path) / re.sub(r'["<>:/|\\\\?*\\[\\]]+', "__", path)
place.mkdir(parents=True)
content = {"results": results, "group_subtasks": {}, "configs": {}, "date": time.time(), "model_name": path}
(place / f"results_{datetime.datetime.now().isoformat().replace(':', '-')}.json").write_text(json.dumps(content, indent=2))
"""
LINE = (
    " [2026-01-16 07:32:{second:02}] iteration {step:8}/    2000 | consumed samples: {step:12} |"
    " elapsed time per iteration (ms): 100.0 | learning rate: 1.0E-04 | global batch size:     1 | lm loss: 5.0E+00 |"
    " loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run that has three checkpoints and a log, and a program called lm_eval."""
    place = tmp_path_factory.mktemp("evaluation")
    run = place / "run1"
    for iteration in (500, 1000, 1500):
        model = place / f"model{iteration}"
        model.mkdir()
        shapes = families.family_of(ARCHITECTURE).canonical(Model(ARCHITECTURE, ARCHITECTURE.vocab_size))
        save_file({name: torch.full(shape, 0.1) for name, shape in shapes.items()}, model / "model.safetensors")
        (model / "config.json").write_text(json.dumps(huggingface.to_config(ARCHITECTURE, "float32")))
        lt_convert.convert(model, place / "made" / str(iteration), "megatron-dist")
        run.mkdir(exist_ok=True)
        (place / "made" / str(iteration) / "release").rename(checkpoint_layout.iteration_directory(run, iteration))
    checkpoint_layout.write_tracker(run, 1500)
    (run / "train.log").write_text("".join(LINE.format(second=step // 100, step=step) for step in range(100, 1600, 100)))
    (place / "bin").mkdir()
    (place / "bin" / "lm_eval").write_text(f"#!{sys.executable}\n{HARNESS}")
    (place / "bin" / "lm_eval").chmod(0o755)
    return place


def shell(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    path = f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(["bash", "-c", command], cwd=place, env=os.environ | {"PATH": path}, capture_output=True, text=True)


def test_scores_of_a_run_that_is_followed(place: Path) -> None:
    (block,) = (found.text for found in documented_blocks.blocks_of(PAGE) if found.text.startswith("lt-convert follow"))
    done = shell(block, place)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["count"] for line in done.stdout.splitlines()[-1:]] == [3]
    again = shell(block, place)
    assert (again.returncode, json.loads(again.stdout)["count"]) == (0, 0)
    kept = sorted(path.parent.name for path in (place / "run1-evals").glob("*/model.safetensors"))
    assert kept == ["iter_0001000", "iter_0001500"]
    commands = re.findall(r"^    (lt-monitor .*--evals.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 3
    summary, report, curve = (shell(command, place) for command in commands)
    assert {summary.returncode, report.returncode, curve.returncode} == {0}, (summary.stderr, report.stderr, curve.stderr)
    assert "hellaswag/acc_norm 0.25, arc_easy/acc_norm 0.25 at step 1,500" in summary.stdout
    assert "<h3>arc_easy/acc_norm" in (place / "report.html").read_text()
    assert re.search(r"^hellaswag +0\.05 .* 0\.15$", curve.stdout, re.MULTILINE), curve.stdout
