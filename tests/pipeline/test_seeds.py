"""The pages for users of other systems: every counterpart of a command that can run here runs, one after the other.

What is rendered for sbatch goes through shellcheck, for kubectl through the schemas. `sbatch` is a stand-in that keeps what it is
given, and `srun` one that runs its command as one task. Directories of the pages stand below a temporary one. What cannot run
here is Docker, a cluster, and a network. The last column of each table says which of this happens to its row.
"""

import functools
import io
import json
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nursery
import pytest
import rendering
import zstandard
from rendering import Cluster, manifests, render, shellcheck

from lt_train.cli import command as training
from lt_train.commands.render import command as jobs
from lt_train.config.cluster import GPUS
from lt_train.config.cluster import Cluster as Gpus
from lt_train.planner import layout_table
from lt_train.render import stage_check

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "tests/demo"
BINARIES = Path(sys.executable).parent
P5 = Gpus(GPUS["h100-80gb"], 2, 8)
PAGES = sorted((ROOT / "docs/seeds").glob("*.md"))
# What ends only with Ctrl-C, asks a scheduler, or has parts left out.
CANNOT_RUN = re.compile(r"^lt-monitor (watch|slurm|neuron)|\.\.\.|^lt-train \w+( \w+)?$")
OF_OURS = re.compile(r"\blt-(train|preprocess|convert|monitor) |sbatch gpt3\.sbatch")
RENDERED = re.compile(r"lt-train render (?P<words>.*) \| (?P<consumer>sbatch|kubectl apply -f -)")
# A model of billions of parameters: as far as its plan.
LARGE = re.compile(r"^lt-train --model")
# Finds what is wrong with this machine for such a run.
FINDS = re.compile(r"lt-train preflight")
STAND_INS = {
    "sbatch": 'cat "${@:-/dev/stdin}" > "$KEPT/$(ls "$KEPT" | wc -l).sbatch"; echo 77',
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; export SLURM_PROCID=0 SLURM_NTASKS=1; exec "$@"',
}
RECIPE = """\
trainer: {devices: 8, num_nodes: 4, precision: bf16, max_steps: 40}
model:
  model_type: llama_v3
  num_hidden_layers: 16
  hidden_size: 2048
  num_attention_heads: 32
  num_key_value_heads: 8
  intermediate_size: 8192
  vocab_size: 128256
  max_context_width: 8192
  tensor_model_parallel_degree: 4
  fp8: True
"""
# As upstream: the layout follows from the number of nodes, which nothing sets.
MEGATRON = """\
if [ $NODES -le 4 ]; then
    : "${TENSOR_PARALLEL:=4}"
    : "${PIPELINE_PARALLEL:=2}"
    : "${GLOBAL_BATCH_SIZE:=288}"
elif [ $NODES -ge 8 ]; then
    : "${TENSOR_PARALLEL:=8}"
    : "${PIPELINE_PARALLEL:=4}"
    TOTAL_GPUS=$((NODES * 8))
    DATA_PARALLEL=$((TOTAL_GPUS / (TENSOR_PARALLEL * PIPELINE_PARALLEL)))
    : "${GLOBAL_BATCH_SIZE:=$((DATA_PARALLEL * 576))}"
fi
: "${NUM_LAYERS:=36}"
: "${HIDDEN_SIZE:=4096}"
: "${NUM_ATTENTION_HEADS:=32}"
: "${SEQ_LENGTH:=2048}"
: "${MAX_POSITION_EMBEDDINGS:=2048}"
: "${MICRO_BATCH_SIZE:=1}"
declare -a MEGATRON_ARGS=(
    --num-layers $NUM_LAYERS --hidden-size $HIDDEN_SIZE --num-attention-heads $NUM_ATTENTION_HEADS
    --seq-length $SEQ_LENGTH --max-position-embeddings $MAX_POSITION_EMBEDDINGS
    --micro-batch-size $MICRO_BATCH_SIZE --global-batch-size $GLOBAL_BATCH_SIZE
    --tensor-model-parallel-size $TENSOR_PARALLEL --pipeline-model-parallel-size $PIPELINE_PARALLEL
)
srun -l python -m torch.distributed.run --nnodes=$SLURM_JOB_NUM_NODES pretrain_gpt.py "${MEGATRON_ARGS[@]}" \\
    --train-samples 146484375 --split 98,2,0 \\
    --data-path /fsx/data/gpt2/my-gpt2_text_document --fp16 --recompute-activations
"""
OPTIONS_OF_OURS = ("`--", "` or `--")
MANIFEST = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: megatron}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: ${NUM_NODES}
      template:
        spec:
          containers:
            - name: pytorch
              command: ["/usr/local/bin/torchrun", "--nproc_per_node=${GPU_PER_NODE}", "--nnodes=${NUM_NODES}"]
              args:
                - /workspace/Megatron-LM/pretrain_gpt.py
                - --tensor-model-parallel-size=${TENSOR_PARALLEL}
                - --pipeline-model-parallel-size=${PIPELINE_PARALLEL}
                - --num-layers=${NUM_LAYERS}
                - --hidden-size=${HIDDEN_SIZE}
                - --num-attention-heads=${NUM_ATTENTION_HEADS}
                - --seq-length=${SEQ_LENGTH}
                - --max-position-embeddings=${MAX_POSITION_EMBEDDINGS}
                - --micro-batch-size=${MICRO_BATCH_SIZE}
                - --global-batch-size=${GLOBAL_BATCH_SIZE}
                - --train-samples=146484375
                - --lr-decay-samples=126953125
                - --lr-warmup-samples=183105
                - --data-path=/fsx/gpt2/my-gpt2_text_document
                - --split=98,2,0
                - --fp16
                - --recompute-activations
"""
# The guides' table: attention heads, hidden size, layers, and billions of parameters.
SIZES = ((24, 2304, 24, 1.7), (32, 3072, 30, 3.6), (32, 4096, 36, 7.5), (48, 6144, 40, 18.4))
TITAN = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\nsteps = 1000\nlocal_batch_size = 1\n'


def rows(page: Path) -> list[tuple[str, str, set[str]]]:
    """What a guide says, what stands for it here, and how the row says that it is checked."""
    found = []
    for line in page.read_text().partition("\n## The guide, part by part")[0].splitlines():
        if line.startswith("| ") and not line.startswith("| the guide"):
            there, here, checked = (cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            found.append((there, here, set(checked.split(", "))))
    return found


def commands(cell: str) -> list[str]:
    """The commands of our tools in a cell that can run here."""
    return [span for span in re.findall(r"`([^`]+)`", cell) if OF_OURS.search(span) and not CANNOT_RUN.search(span)]


def counterparts(page: Path) -> list[str]:
    return [command for _, here, _ in rows(page) for command in commands(here)]


def checks(cell: str) -> set[str]:
    """What the tests of this file do with the second cell of a row."""
    found = {
        "rendered" if RENDERED.fullmatch(command) else "planned" if LARGE.search(command) else "run" for command in commands(cell)
    }
    if not found and any(option in cell for option in OPTIONS_OF_OURS):
        found.add("options")
    return found or {"read"}


@pytest.fixture(autouse=True)
def _copies_of_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """What renders in this process asks copies of the other tools."""
    monkeypatch.setattr(stage_check, "_program", lambda tool: shutil.which(tool, path=nursery.light_programs()))


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a tiny model."""
    directory = tmp_path_factory.mktemp("trained") / "run"
    options = (
        "--model tiny --num-layers 1 --seq-length 64 --train-iters 2 --log-interval 1 --eval-iters 0 --device cpu --mock-data"
    )
    command = [nursery.python(), "-m", "lt_train", *options.split(), "--save", directory]
    subprocess.run(command, check=True, capture_output=True, env=environment())
    return directory


def environment(**more: str) -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("LT_", "SLURM"))} | more


def workplace(place: Path, run_directory: Path) -> dict[str, str]:
    """The files that the pages take for granted, and the environment for their commands."""
    with (DEMO / "corpus.jsonl.zst").open("rb") as compressed:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(compressed), encoding="utf-8").readlines()[:150]
    text = "".join(lines).encode()
    (place / "tests/demo").mkdir(parents=True)
    (place / "tests/demo/corpus.jsonl.zst").write_bytes(zstandard.compress(text))
    (place / "tests/demo/tokenizer").symlink_to(DEMO / "tokenizer")
    for name in ("fsx/data/gpt2", "fsx/data/llama2", "fsx/gpt2", "fsx/llama2", "fsx/llama3", "shared/llama7b_tokenizer"):
        shutil.copytree(DEMO / "tokenizer", place / name)
        (place / name / "oscar-1GB.jsonl.xz").write_bytes(lzma.compress(text))
    for name in ("fsx/c4", "shared/data/RedPajama-Data-1T-Sample"):
        (place / name).mkdir(parents=True)
        (place / name / "part.jsonl").write_bytes(text)
    for name in ("fsx/checkpoints", "fsx/data/checkpoints", "fsx/llama3-2-1b"):
        shutil.copytree(run_directory, place / name)
    (place / "recipe.yaml").write_text(RECIPE)
    (place / "2.distributed-training.sbatch").write_text(MEGATRON)
    (place / "custom_config.toml").write_text(TITAN)
    shutil.copy(ROOT / "tests/train/importers/samples/nemo.yaml", place / "megatron_llama_config.yaml")
    (place / "pytorchjob.yaml-template").write_text(MANIFEST)
    for directory in ("bin", "kept"):
        (place / directory).mkdir()
    for name, body in STAND_INS.items():
        (place / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (place / "bin" / name).chmod(0o755)
    # What a tool starts is a copy, too: ranks of a preflight, and the other tools, which it looks for beside its Python.
    nursery.executable(place / "bin/python", nursery.python())
    for folder in (nursery.programs(), nursery.light_programs()):
        for program in Path(folder).iterdir():
            (place / "bin" / program.name).symlink_to(program)
    (place / "bin/sitecustomize.py").write_text(f"import sys\n\nsys.executable = {str(place / 'bin/python')!r}\n")
    path = f"{place}/bin:{BINARIES}:/usr/bin:/bin"
    return environment(PATH=path, PYTHONPATH=f"{place}/bin", KEPT=f"{place}/kept")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_counterpart_works(page: Path, tmp_path: Path, run_directory: Path) -> None:
    variables = workplace(tmp_path, run_directory)
    commands = counterparts(page)
    assert len(commands) >= 3
    for command in commands:
        rendered = RENDERED.fullmatch(command)
        if rendered:
            _render(shlex.split(rendered["words"]), rendered["consumer"])
            continue
        # A job file names paths of its cluster, and looks at none of them.
        line = command if " render " in command else re.sub(r"(?<![\w/])/(fsx|shared)\b", rf"{tmp_path}/\1", command)
        line += " --dry-run" if LARGE.search(command) else ""
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{line}"], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=900
        )
        may_refuse = FINDS.search(command) or "the plan does not fit" in done.stderr
        assert done.returncode in ((0, 78) if may_refuse else (0,)), f"{command}\n{done.stderr}"
    kept = sorted((tmp_path / "kept").iterdir())
    submitted = [
        command for command in commands if re.search(r"(\| |&& |\w )sbatch\b", command) and not RENDERED.fullmatch(command)
    ]
    assert len(kept) == len(submitted)
    for file in kept:
        shellcheck(file.read_text())
    for file in tmp_path.glob("**/*.manifest"):
        assert json.loads(file.read_text().splitlines()[-1])["kind"] == "end"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_says_how_it_is_checked(page: Path) -> None:
    for there, here, stated in rows(page):
        files = {word.strip("`") for word in stated if word.startswith("`")}
        assert all((ROOT / file).is_file() for file in files), there
        computed = checks(here)
        assert stated - {f"`{file}`" for file in files} == (set() if files and computed == {"read"} else computed), there
        if computed == {"options"}:
            named = set(re.findall(r"(?<=[` ])--[a-z][a-z0-9-]+(?![a-z0-9=-])", here))
            assert named <= set(options_of_ours()), there


@functools.cache
def options_of_ours() -> list[str]:
    renderers = jobs.commands.values()
    return [spelling for command in (training, *renderers) for option in command.params for spelling in option.opts]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_small_run_of_the_guide(page: Path, tmp_path: Path, run_directory: Path) -> None:
    """From text to a model, with the guide's configuration: stopped halfway, continued, converted."""
    variables = workplace(tmp_path, run_directory)
    (block,) = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("iteration") for line in printed if line["kind"] == "checkpoint"] == [3, 6, 6]
    configuration = json.loads((tmp_path / "try/model/config.json").read_text())
    assert {"n_layer", "num_hidden_layers"} & configuration.keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_part_of_a_guide_has_a_verdict(page: Path) -> None:
    parts = page.read_text().partition("## The guide, part by part")[2]
    verdicts = [re.split(r"(?<!\\)\|", line)[1:-1] for line in parts.splitlines() if line.startswith("| ")][1:]
    assert len(verdicts) >= 16
    for part, verdict, here in verdicts:
        assert verdict.strip() in ("works", "differs", "cannot be done", "as before"), part
        assert here.strip() or verdict.strip() in ("works", "as before"), part


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_jobs_have_what_their_page_installs(page: Path) -> None:
    """A node without a container has what was installed by pip: TensorBoard and s3fs are extras, in the image and not there."""
    for command in counterparts(page):
        if "render slurm" in command and ("--tensorboard-dir" in command or "s3://" in command):
            assert "--image /fsx/lt.sqsh" in command
        if command.startswith("srun ") and "lt-preprocess" in command:
            assert "--exclusive --cpu-bind=none --container-image=/fsx/lt.sqsh" in command


def _render(words: list[str], consumer: str) -> None:
    """Valid, for machines that are named, and with room for the model."""
    assert "--instance-type" in words
    result = rendering._invoke(*words)
    assert "does not fit" not in result.stderr
    if consumer == "sbatch":
        shellcheck(result.stdout)
    else:
        assert manifests(*words)


@pytest.mark.parametrize(("heads", "hidden", "layers", "billions"), SIZES)
@pytest.mark.parametrize("layout", [{}, {"TENSOR_PARALLEL": "8", "PIPELINE_PARALLEL": "1"}], ids=["auto", "own"])
def test_sizes_in_the_environment_of_one_job_file(
    heads: int, hidden: int, layers: int, billions: float, layout: dict[str, str], tmp_path: Path
) -> None:
    """The guides' way to choose a size: the job gets a model of that size, and a layout that works on its two nodes."""
    (line,) = (span for span in counterparts(ROOT / "docs/seeds/megatron-hyperpod.md") if span.endswith("> gpt3.sbatch"))
    words = shlex.split(line.removeprefix("lt-train render ").removesuffix(" > gpt3.sbatch"))
    script = render(*(re.sub("^@?/fsx", str(tmp_path), word) for word in words))
    cluster = Cluster(tmp_path)
    cluster.add("lt-train", f"""printf '%s\\n' "$@" > {tmp_path}/words; echo '{{"v":1,"kind":"end","count":1}}'""")
    sizes = {"NUM_ATTENTION_HEADS": str(heads), "HIDDEN_SIZE": str(hidden), "NUM_LAYERS": str(layers)}
    assert cluster.run(script, **sizes, **layout).returncode == 0
    options = training.make_context("lt-train", (tmp_path / "words").read_text().splitlines()).params
    lists = {"data_path": (), "train_data_path": (), "valid_data_path": (), "test_data_path": ()}
    choice = layout_table.choose_layout(options | lists | {"mock_data": True, "eval_iters": 0, "split": None}, P5)
    assert choice.best.fits
    assert choice.best.config.architecture.parameters(51200) == pytest.approx(billions * 1e9, abs=0.05e9)
    if layout:
        assert choice.best.config.parallelism.tensor == 8


def test_every_page_is_linked() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(PAGES) == 5
    for page in PAGES:
        assert f"]({page.relative_to(ROOT)})" in readme
        assert "## Not tried on hardware" in page.read_text()
