"""A job file is refused for what would fail after hours in a queue."""

import contextlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click import UsageError as ClickUsageError
from rendering import Cluster, remarks, render, scripts

from lt_shared.console import BadConfig, UsageError
from lt_shared.contracts.manifest import Dataset
from lt_train.cli import command as train_command
from lt_train.commands.render import EXAMPLES, K8S_EXAMPLES, SLURM_EXAMPLES
from lt_train.commands.render import command as render_command
from lt_train.config.cluster import GPUS
from lt_train.config.instances import INSTANCES
from lt_train.render import stage_check

TOKENIZER = Path(__file__).parents[2] / "demo/tokenizer"
GUIDES = [Path(__file__).parents[3] / f"docs/guides/{name}.md" for name in ("kubernetes", "slurm")]
TRAIN = ("--model", "tiny", "--mock-data")
ON_P5 = ("--instance-type", "p5.48xlarge", *TRAIN, "--save", "/fsx/run")


@pytest.mark.parametrize(
    "options",
    [
        ("--tensorboard-dir", "/fsx/run/curves"),
        ("--tensorboard-dir", "/dev/null/curves"),
        ("--wandb-project", "p"),
        ("--transformer-impl", "te"),
        ("--bf16", "--kv-channels", "64", "--attention-backend", "flash"),
        ("--bf16", "--optimizer", "muon"),
        ("--bf16", "--optimizer", "muon", "--parallel", "auto"),
    ],
)
def test_a_job_needs_nothing_of_the_machine_that_prints_it(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages are in the container, directories on the cluster."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert options[-1] in render("slurm", *ON_P5, *options)


@pytest.mark.parametrize("scheduler", ["slurm", "k8s"])
@pytest.mark.parametrize("size", ["tensor", "pipeline"])
def test_too_few_ranks(scheduler: str, size: str) -> None:
    image = ("--image", "lt") if scheduler == "k8s" else ()
    with pytest.raises(BadConfig, match="8 ranks do not divide") as caught:
        render(scheduler, *image, *ON_P5, f"--{size}-model-parallel-size", "16")
    assert caught.value.hint == "start a multiple of 16 ranks"


@pytest.mark.parametrize("scheduler", ["slurm", "k8s"])
def test_more_nodes_than_there_are(scheduler: str) -> None:
    with pytest.raises(ClickUsageError, match="is not in the range"):
        render(scheduler, "--nodes", "99999999999999999999", *TRAIN, "--save", "/fsx/run")


def test_pods_start_again_together() -> None:
    with pytest.raises(UsageError, match="--max-restarts: the job's pods"):
        render("k8s", "--nodes", "2", "--image", "lt", *TRAIN, "--save", "/fsx/run", "--max-restarts", "2")


def test_a_layout_is_checked_without_the_spare_nodes() -> None:
    """Four ranks on each node, and a pipeline of eight stages on two nodes."""
    words = ("--gpus-per-node", "4", "--pipeline-model-parallel-size", "8", "--num-layers", "8", *TRAIN, "--save", "/fsx/run")
    render("slurm", "--nodes", "3", "--spare-nodes", "1", "--max-restarts", "1", *words)
    with pytest.raises(BadConfig, match="12"):
        render("slurm", "--nodes", "3", *words)


@pytest.fixture
def cluster_words(tmp_path: Path) -> Callable[[str], list[str]]:
    """Runs a job file; gives the words that lt-train gets."""

    def words(script: str) -> list[str]:
        cluster = Cluster(tmp_path)
        cluster.add("lt-train", f"""printf '%s\\n' "$@" > {tmp_path}/words; echo '{{"v":1,"kind":"end","count":1}}'""")
        done = cluster.run(script)
        assert done.returncode == 0, done.stderr
        return (tmp_path / "words").read_text().splitlines()

    return words


SPARES = ("--max-restarts", "2", "--spare-nodes")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (TRAIN, "no --save"),
        ((*TRAIN, "--save", "run", "--plain"), "--plain"),
        ((*TRAIN, "--save", "run", "--dry-run"), "--dry-run"),
        ((*TRAIN, "--save", "run", "--nodes", "3", "--spare-nodes", "1"), "--spare-nodes without --max-restarts"),
        ((*TRAIN, "--save", "run", "--nodes", "2", *SPARES, "2"), "--spare-nodes 2 of 2 node"),
        ((*TRAIN, "--save", "run", "--nodes", "2-4", *SPARES, "1"), "--nodes 2-4 and --spare-nodes"),
        ((*TRAIN, "--save", "run", "--nodes", "2", "--min-nodes", "1"), "--min-nodes"),
        (("--model", "tiny", "--save", "run"), "no DATA"),
        (("--model", "tiny", "--save", "run", "-"), "standard input"),
        (("--model", "tiny", "--save", "run", "--data-path", "-"), "standard input"),
        ((*TRAIN, "--save", "run", "--preprocess", "corpus -o web"), "DATA and --preprocess"),
        ((*TRAIN, "--save", "run", "--convert", "--to hf"), "-o"),
        ((*TRAIN, "--save", "run", "--convert", ""), "-o"),
        (("--model", "tiny", "--save", "run", "--preprocess", " "), "without arguments"),
        (("--model", "tiny", "--save", "run", "--preprocess", "it's"), "quotation"),
        ((*TRAIN, "--save", "run", "--instance-type", "p9.huge"), "no instance type"),
        ((*TRAIN, "--save", "run", "--instance-type", ""), "no instance type ''"),
        ((*TRAIN, "--save", "run", "--instance-type", "g5.12xlarge", "--gpus-per-node", "8"), "g5.12xlarge has 4"),
        (("--model", "tiny", "--save", "run", "--preprocess", "/fsx/c --tokenizer t -o web --nope 3"), "No such option '--nope'"),
        (("--model", "tiny", "--save", "run", "--preprocess", "merge /fsx/a -o web --nope"), "No such option '--nope'"),
        (("--model", "tiny", "--save", "run", "--preprocess", "/fsx/c --tokenizer t -o"), "'-o' requires an argument"),
        (("--model", "tiny", "--save", "run", "--preprocess", "/fsx/c -o web"), "no tokenizer is named"),
        ((*TRAIN, "--save", "run", "--convert", "--to nope -o hf"), "--convert: Invalid value for '--to'"),
        ((*TRAIN, "--save", "run", "--convert", "--to hf -o hf --target-tensor-parallel-size 2"), "--convert: --target"),
        ((*TRAIN, "--save", "run", "--instance-type", "trn1.32xlarge"), "no backend for Trainium"),
        ((*TRAIN, "--save", "run", "--job-name", "x\n#SBATCH --uid=0"), "--job-name"),
        ((*TRAIN, "--save", "run", "--job-name", "x y"), "--job-name"),
        ((*TRAIN, "--save", "run", "--job-name", ""), "--job-name"),
        ((*TRAIN, "--save", "run", "--image", "/fsx/a\nb.sqsh"), "--image"),
        ((*TRAIN, "--save", "run", "--image", ""), "--image"),
        ((*TRAIN, "--save", "s3://key:pass/word@bucket/x"), "--save: .*holds a password"),
        ((*TRAIN, "--save", "run", "--image", "docker://me:word@host/image"), "--image: .*holds a password"),
        (
            ("--model", "tiny", "--save", "run", "--preprocess", "s3://key:word@bucket/x -o web"),
            "--preprocess: .*holds a password",
        ),
        ((*TRAIN, "--save", "run\nEND_OF_TRAIN\ntouch x"), "line break"),
        ((*TRAIN, "--save", "~/run"), "replaces ~"),
        ((*TRAIN, "--save=~/run"), "replaces ~"),
        (("--model", "tiny", "--save", "run", "@~/web.manifest"), "replaces ~"),
        (("--model", "tiny", "--save", "run", "--preprocess", "'a\nb' -o web"), "line break"),
        ((*TRAIN, "--save", "run", "--time", "1:00\ntouch x"), "--time"),
        ((*TRAIN, "--save", "run", "--time", "soon"), "--time"),
        ((*TRAIN, "--save", "run", "--image", "a.sqsh", "--container-mounts", "/a:/a\ntouch x"), "line break"),
    ],
)
def test_what_a_job_cannot_be(arguments: tuple[str, ...], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        render("slurm", *arguments)


@pytest.mark.parametrize(
    "example", [line for text in (EXAMPLES, SLURM_EXAMPLES, K8S_EXAMPLES) for line in text.strip().splitlines()]
)
def test_every_example_of_the_help(example: str) -> None:
    line, _, consumer = example.partition(" | ")
    program, named, *arguments = shlex.split(line)
    assert (program, named) == ("lt-train", "render")
    assert render(*arguments).startswith("#!/bin/bash" if arguments[0] == "slurm" else "# All of this run is deleted by: kubectl")
    assert consumer in ("", "sbatch" if arguments[0] == "slurm" else "kubectl apply -f -")


@pytest.mark.parametrize(
    "line", [line for page in GUIDES for line in re.findall(r"^    lt-train render .*$", page.read_text(), re.M)]
)
def test_every_job_of_the_guides(line: str) -> None:
    _, _, *arguments = shlex.split(line)
    printed = render(*arguments)
    assert ("FI_PROVIDER" in printed) is ("p5.48xlarge" in line)
    assert ("vpc.amazonaws.com" in printed) is ("k8s" in line and "p5.48xlarge" in line)


def shell_of(renderer: str, printed: str) -> str:
    """The shell in which a rendered job calls lt-train, the same on all nodes."""
    if renderer == "slurm":
        return printed
    (script,) = {script for document in yaml.safe_load_all(printed) for script in scripts(document) if "train=(" in script}
    return script


@pytest.mark.parametrize("stages", [(), ("--preprocess", "corpus --tokenizer gpt2 -o web")], ids=["train", "preprocess"])
@pytest.mark.parametrize(
    ("renderer", "options"),
    [("slurm", ()), ("slurm", ("--chain", "dependency")), ("k8s", ("--image", "registry/lt"))],
    ids=["slurm", "slurm-dependency", "k8s"],
)
def test_lt_train_accepts_every_rendered_command_line(
    renderer: str, options: tuple[str, ...], stages: tuple[str, ...], tmp_path: Path
) -> None:
    assert set(render_command.commands) == {"slurm", "k8s"}  # type: ignore[attr-defined]
    cluster = Cluster(tmp_path)
    cluster.add("lt-preprocess", "")
    cluster.add("lt-train", f"""printf '%s\\n' "$@" > {tmp_path}/words; echo '{{"v":1,"kind":"end","count":1}}'""")
    cluster.add("sbatch", "bash >&2; echo 77")
    model = ("--model", "llama3-8b", "--bf16", "--parallel", "auto")
    given = (*model, "--global-batch-size", "64", "--rampup-batch-size", "32", "32", "64")
    data = () if stages else ("0.7", f"{tmp_path}/web", "0.3", f"{tmp_path}/code")
    mount = ("--mount", str(tmp_path)) if renderer == "k8s" else ()
    stages = tuple(word.replace("-o web", f"-o {tmp_path}/web") for word in stages)
    printed = render(renderer, "--nodes", "2", *options, *mount, *stages, *given, "--save", f"{tmp_path}/run", *data)
    done = cluster.run(shell_of(renderer, printed), PET_NODE_RANK="0")
    assert done.returncode == 0, done.stderr
    accepted = train_command.make_context("lt-train", (tmp_path / "words").read_text().splitlines()).params
    assert (accepted["model"], accepted["rampup_batch_size"]) == ("llama3-8b", (32, 32, 64))
    assert accepted["data"] == (data or (f"@{tmp_path}/run/data.manifest",))


def test_an_unknown_renderer() -> None:
    with pytest.raises(UsageError, match="no renderer 'mpijob'") as caught:
        render("mpijob", *TRAIN, "--save", "run")
    assert caught.value.hint == "lt-train render k8s or lt-train render slurm"


@pytest.mark.parametrize("words", [("--micro-batch", "4"), ("--micro-batch-size", "many"), ("--hf_token=secret",)])
def test_words_that_lt_train_does_not_know(words: tuple[str, ...]) -> None:
    with pytest.raises(ClickUsageError):
        render("slurm", *TRAIN, "--save", "run", *words)


@pytest.mark.parametrize("kind", ["slurm", "k8s"])
@pytest.mark.parametrize("name", ["token", "X-Api-Key", "db_password"])
def test_a_parameter_of_a_url_with_a_secret(kind: str, name: str) -> None:
    with pytest.raises(UsageError, match="holds a password or a token") as caught:
        render(kind, *TRAIN, "--save", f"s3://bucket/run?{name}=abcdef123")
    assert "abcdef123" not in f"{caught.value} {caught.value.hint}"
    assert caught.value.hint and "from the environment" in caught.value.hint


def test_a_layout_that_does_not_divide() -> None:
    arguments = ("slurm", "--instance-type", "p5.48xlarge", "--save", "run", "--model", "llama2-70b", "--mock-data")
    with pytest.raises(BadConfig, match="16 ranks do not divide"):
        render(*arguments, "--nodes", "2", "--pipeline-model-parallel-size", "5")
    with pytest.raises(BadConfig, match="attention heads 64"):
        render(*arguments, "--nodes", "3", "--tensor-model-parallel-size", "24")


def test_a_model_that_does_not_fit_is_said_and_rendered() -> None:
    arguments = ("slurm", "--instance-type", "g5.48xlarge", "--save", "run", "--bf16", "--mock-data", "--seq-length", "512")
    assert remarks(*arguments, "--model", "llama3.2-1b", "--use-distributed-optimizer") == ""
    large = (*arguments, "--model", "llama3-8b")
    assert "does not fit into the memory of a10g-24gb: see lt-train plan" in remarks(*large)
    assert "--model llama3-8b" in render(*large)


def test_the_program_may_stand_before_its_arguments() -> None:
    script = render("slurm", "--model", "tiny", "--save", "run", "--preprocess", "lt-preprocess corpus --tokenizer t -o web")
    assert "\n  lt-preprocess corpus --tokenizer t -o web \\\n" in script


@pytest.mark.parametrize(
    "words",
    [
        "{here}/corpus --tokenizer {here}/tokenizer -o {here}/made/web",
        "-o {here}/made/web --tokenizer {here}/tokenizer -- {here}/corpus",
        "{here}/corpus --tokenizer {here}/tokenizer -o",
        "shuffle {dataset} -o {here}/made/all",
    ],
)
def test_a_check_of_stages_does_not_run_them(
    words: str, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.jsonl").write_text('{"text": "one"}\n')
    (tmp_path / "tokenizer").symlink_to(TOKENIZER)
    (tmp_path / "made").mkdir()
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with contextlib.suppress(UsageError):
        render("slurm", "--model", "tiny", "--save", "run", "--preprocess", words.format(here=tmp_path, dataset=dataset.prefix))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("body", "is_taken"), [(None, True), ("exit 66", True), ("exit 2", False), ("exec sleep 60", True)])
def test_stages_are_checked_where_their_tool_is_installed(
    body: str | None, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/nowhere/python")
    monkeypatch.setattr(stage_check, "SECONDS", 1)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    if body:
        program = tmp_path / "bin/lt-preprocess"
        program.write_text(f"#!/bin/bash\n{body}\n")
        program.chmod(0o755)
    words = ("slurm", "--model", "tiny", "--save", "run", "--preprocess", "/fsx/c --nope -o web")
    if is_taken:
        assert "--nope" in render(*words)
        return
    with pytest.raises(UsageError, match="--preprocess: lt-preprocess does not take these words"):
        render(*words)


def test_a_remote_run_keeps_its_manifests_in_the_working_directory() -> None:
    script = render("slurm", *TRAIN, "--save", "s3://bucket/run")
    assert "> lt-lt-train-checkpoints.manifest ||" in script
    assert "mkdir" not in script


def test_what_the_environment_and_the_file_of_options_say_is_in_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster_words: Callable[[str], list[str]]
) -> None:
    """The nodes of the job may have neither."""
    file = tmp_path / "run.toml"
    file.write_text('save = "run"\nmock-data = true\nswiglu = false\nrampup-batch-size = [2, 2, 8]\nlr = 1e-4\ndata-path = []\n')
    monkeypatch.setenv("LT_TRAIN_SEQ_LENGTH", "64")
    monkeypatch.setenv("LT_TRAIN_LR", "1e-3")
    monkeypatch.setenv("LT_TRAIN_BF16", "1")
    script = render("slurm", "--config", str(file), "--model", "tiny", "--seq-length", "32")
    assert cluster_words(script) == shlex.split(
        "--model tiny --seq-length 32 --rampup-batch-size 2 2 8 --bf16 --lr 1e-3 --mock-data --save run"
    )


def test_gpus_of_instances_are_known() -> None:
    for instance in INSTANCES.values():
        assert instance.gpu is None or instance.gpu in GPUS
        assert instance.device_rdma or instance.gpu
        assert (instance.resource == "nvidia.com/gpu") is (instance.gpu is not None)
