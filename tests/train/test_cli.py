"""The manual page and the help show the same, and every example in them works."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import nursery
import pytest
import zstandard
from running import SMALL, environment, run, train

from lt_shared.contracts.manifest import Dataset
from lt_train.cli import EXAMPLES, commands

ROOT = Path(__file__).parents[2]
GUIDES = [
    "training",
    "models",
    "parallelism",
    "precision",
    "launching",
    "slurm",
    "kubernetes",
    "preflight",
    "checkpoints",
    "reports",
    "speed",
]
README = (ROOT / "tools/train/README.md").read_text()
# A test of its own runs it, in full.
(OF_README,) = re.findall(r"^    (lt-preprocess .*)$", README, re.MULTILINE)
PAGES = (ROOT / "tools/train/README.md", ROOT / "docs/coming-from.md", *(ROOT / f"docs/guides/{name}.md" for name in GUIDES))
NO_CONTEXT = click.Context(commands)
OF_COMMANDS = [
    line
    for name in commands.list_commands(NO_CONTEXT)
    for line in getattr(commands.get_command(NO_CONTEXT, name), "examples", "").strip().splitlines()
]
IN_PAGES = [line for page in PAGES for line in re.findall(r"^    (?=\S*.*lt[-_]train )(.+)$", page.read_text(), re.MULTILINE)]
# Needs a scheduler; test_launch.py runs two tasks under the variables that srun sets.
NEEDS_A_CLUSTER = re.compile(r"^(srun|sbatch) |\| (sbatch|kubectl)")
# Eight layers of a large model, for a GPU: here as far as its plan.
NEEDS_A_GPU = re.compile(r"bench --model llama3-8b")

# Configurations of other trainers, as the documentation calls them.
SAMPLES = {
    "llama3_70b.toml": "llama3_70b.toml",
    "conditions.sbatch": "2.distributed-training.sbatch",
    "nemo.yaml": "megatron_gpt_config.yaml",
}

# As the page's file, but for two steps of each phase.
# Small configurations in Python in the place of the published ones: sample, its function, the published function.
RECIPES = {
    "recipes/llama3.py": ("bridge_recipe.txt", "small_pretrain_config", "llama3_8b_pretrain_config"),
    "src/megatron/bridge/recipes/llama/h100/llama3.py": (
        *("bridge_recipe.txt", "small_pretrain_config", "llama3_8b_pretrain_2gpu_h100_bf16_config"),
    ),
    "torchtitan/models/qwen3/config_registry.py": ("titan_registry.txt", "small", "qwen3_0_6b"),
    "nemo/collections/llm/recipes/llama3_8b.py": ("nemo_recipe.txt", "pretrain_recipe", "pretrain_recipe"),
}
PHASES = """
phases:
  - {name: pretraining, tokens: 256, weights: {web_text_document: 0.8, code_text_document: 0.2}}
  - name: long context
    samples: 4
    weights: {code_text_document: 0.5, books_text_document: 0.5}
    seq-length: 128
    rotary-base: 5000000
"""


def test_the_guide_shows_the_help() -> None:
    shown = run("-h", COLUMNS="80").out
    assert f"```\n{shown}```\n" in (ROOT / "docs/guides/training.md").read_text()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, write_dataset: Callable[..., Dataset]) -> Path:
    """A directory with the inputs that the examples name."""
    place = tmp_path_factory.mktemp("examples")
    (place / "bin").mkdir()
    nursery.executable(place / "bin/lt-train", nursery.python(), "-m", "lt_train")
    nursery.executable(place / "bin/torchrun", nursery.python(), "-m", "torch.distributed.run")
    (place / "data").mkdir()
    for name in ("web", "code", "books"):
        write_dataset(place / f"data/{name}_text_document", documents=100)
    demo = Path(__file__).parents[1] / "demo"
    (place / "gpt2").symlink_to(demo / "tokenizer")
    (place / "tests").symlink_to(demo.parent)
    with (demo / "corpus.jsonl.zst").open("rb") as compressed:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(compressed), encoding="utf-8").readlines()
    (place / "corpus.jsonl").write_text("".join(lines[:100]))
    # A micro batch a step: 160 samples, as examples ask for those.
    steps = ("--micro-batch-size", "8", "--train-iters", "20", "--save-interval", "10", "--save", str(place / "run9"))
    done = train(*SMALL, *steps, str(place / "data/web_text_document"))
    assert done.code == 0, done.err
    for sample, name in SAMPLES.items():
        shutil.copy(Path(__file__).parent / "importers/samples" / sample, place / name)
    for path, (sample, name, renamed) in RECIPES.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        text = (Path(__file__).parent / "importers/samples" / sample).read_text()
        (place / path).write_text(text.replace(f"def {name}(", f"def {renamed}("))
    (place / "model.toml").write_text('model = "tiny"\nglobal-batch-size = 2\n')
    (place / "phases.yaml").write_text(PHASES)
    (place / "run.toml").write_text('model = "tiny"\nseq-length = 256\ntrain-iters = 20\n')
    return place


def shortened(example: str) -> str:
    """A fifth of the steps of an example that trains for ten or more, or for tokens, with all that is counted in steps; one of
    twelve has something to do in each."""
    if not re.search(r"train-iters(?: =)? (?:[2-9]\d|10)|train-tokens", example):
        return example
    counts = r"((?:train-iters|train-tokens|save-interval|decay-iters)(?: =)?) (\d+)"
    return re.sub(counts, lambda option: f"{option[1]} {int(option[2]) // 5}", example)


def test_examples_are_shortened_in_all_that_counts_steps() -> None:
    assert shortened("a --train-iters 30 --save-interval 10 --async-save") == "a --train-iters 6 --save-interval 2 --async-save"
    assert shortened("a --train-iters 20 --lr-wsd-decay-iters 5 b") == "a --train-iters 4 --lr-wsd-decay-iters 1 b"
    assert shortened(r"printf 'train-iters = 20\n'") == r"printf 'train-iters = 4\n'"
    assert shortened("a --train-iters 10 --fp16") == "a --train-iters 2 --fp16"
    assert shortened("a --train-tokens 5000") == "a --train-tokens 1000"
    assert shortened("a --train-iters 12 --save-interval 4") == "a --train-iters 12 --save-interval 4"


@pytest.mark.parametrize(
    "example",
    sorted(
        {
            *EXAMPLES.strip().splitlines(),
            *(line for line in (*OF_COMMANDS, *IN_PAGES) if not NEEDS_A_CLUSTER.search(line)),
        }
        - {OF_README}
    ),
)
def test_every_example_runs(example: str, workplace: Path) -> None:
    variables = environment() | {
        "PATH": os.pathsep.join([str(workplace / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "LT_TRAIN_DEVICE": "cpu",
        "LT_TRAIN_BENCH_DEVICE": "cpu",
        # What torchrun starts.
        "PYTHON_EXEC": nursery.python(),
        # What an example leaves open need not take long.
        "LT_TRAIN_SEQ_LENGTH": "64",
        "LT_TRAIN_EVAL_ITERS": "1",
        "LT_TRAIN_BENCH_SEQ_LENGTH": "64",
        "LT_TRAIN_BENCH_STEPS": "3",
        "LT_TRAIN_BENCH_WARMUP_STEPS": "1",
    }
    script = f"set -o pipefail\n{shortened(example)}{' --dry-run' if NEEDS_A_GPU.search(example) else ''}"
    done = subprocess.run(["bash", "-c", script], cwd=workplace, env=variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 or "error: the plan does not fit" in done.stderr, done.stderr
    assert done.stdout or " > " in example or "0 error(s)" in done.stderr


def test_the_readme_shows_the_loss_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    variables = environment() | {
        "PATH": os.pathsep.join([nursery.programs(), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "LT_TRAIN_DEVICE": "cpu",
    }
    script = f"set -o pipefail\n{OF_README}"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    (shown,) = re.findall(r'^{"v":1,"kind":"checkpoint",.*}$', README, re.MULTILINE)
    printed = done.stdout.splitlines()[-2]
    assert json.loads(printed)["loss"] == pytest.approx(json.loads(shown)["loss"], abs=0.02), done.stderr
