"""Options of sbatch in a job file, arrays of jobs, and how the nodes get their packages."""

import re
from pathlib import Path

import pytest
from rendering import Cluster, remarks, render, shellcheck

from lt_shared.console import UsageError

END = """echo '{"v":1,"kind":"end","count":1}'"""
RUN = ("--mock-data", "--model", "tiny", "--train-iters", "5")
# The function of a module system, which loads what it knows: variables that it does not set stay unset.
MODULES = """\
module() { shift; for name in "$@"; do [ "$name" != no ] || return 1; export LOADED="${LOADED:-}$unset_variable $name"; done; }
export -f module
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    for tool in ("lt-preprocess", "lt-train", "lt-convert"):
        cluster.add(tool, END)
    return cluster


def directives(*arguments: str) -> list[str]:
    script = render("slurm", "--save", "/fsx/run", *RUN, *arguments)
    shellcheck(script)
    return re.findall(r"^#SBATCH --(.*)$", script, re.MULTILINE)


def test_options_of_sbatch() -> None:
    named = ("--partition", "gpu,big", "--account", "a-1", "--qos", "high", "--reservation", "may")
    more = ("constraint=h100&ib", "--mail-type=END,FAIL", "nice", "exclude n[3-4]", "gres=gpu:8", "mem=500G")
    lines = directives(*named, *(word for option in more for word in ("--sbatch-option", option)))
    assert lines[-9:] == [
        *("partition=gpu,big", "account=a-1", "qos=high", "reservation=may", "constraint=h100&ib", "mail-type=END,FAIL", "nice"),
        *("exclude=n[3-4]", "gres=gpu:8"),
    ]
    # In the place of the job file's own, which would be the first of two.
    assert [line for line in lines if line.startswith("mem")] == ["mem=500G"]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("two words", '"two words"'),
        ("# no comment", '"# no comment"'),
        ('a "b" \\ c', '"a \\"b\\" \\\\ c"'),
        ("it's $HOME", '"it\'s $HOME"'),
    ],
)
def test_values_are_quoted_for_sbatch(value: str, line: str) -> None:
    """A backslash escapes in sbatch's quotes. tests/cluster asks a real sbatch."""
    assert directives("--sbatch-option", f"comment={value}")[-1] == f"comment={line}"


@pytest.mark.parametrize(
    ("arguments", "reason", "hint"),
    [
        (("--sbatch-option", "nodes=4"), "the job file sets it", "--nodes 4"),
        (("--sbatch-option", "partition=gpu"), "the job file sets it", "--partition gpu"),
        (("--sbatch-option", "--signal=B:USR1@60"), "needs its own signal", "drop it"),
        (("--sbatch-option", "ntasks=16"), "needs its own ntasks", "drop it"),
        (("--sbatch-option", "nice", "--sbatch-option", "nice=3"), "given twice", "drop one"),
        (("--sbatch-option", "-C h100"), "no long option of sbatch", "constraint=h100"),
        (("--sbatch-option", "comment=a\nb"), "line break", "one line"),
        (("--sbatch-option", "comment="), "an empty value", "drop it"),
        (("--account", ""), "--account: an empty value", "drop it"),
        (("--partition", "a\nb"), "--partition: .*line break", "one line"),
        (("--array", "a-b"), "--array 'a-b'", "0-9"),
        (("--array", "0-9%4"), "4 tasks would write to one --save", "--array 0-9%1"),
        (("--array", "0-9", "--save", "/fsx/run-%a", "--convert", "--to hf -o /fsx/hf"), "one directory", "add %a"),
        (("--venv", "/a", "--conda", "b"), "two environments", "drop one"),
        (("--venv", "/a", "--image", "/fsx/lt.sqsh"), "a container has its own packages", "drop one"),
        (("--venv", "~/lt"), "nothing in a job file replaces ~", "write the directory out"),
        (("--module", "--help"), "--module '--help'", "--module NAME"),
    ],
)
def test_options_that_cannot_be(arguments: tuple[str, ...], reason: str, hint: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        directives(*arguments)
    assert hint in str(caught.value.hint)


def test_an_array_does_not_tokenize() -> None:
    with pytest.raises(UsageError, match="each task would tokenize"):
        render("slurm", "--array", "0-1", "--save", "/fsx/run%a", "--preprocess", "/c --tokenizer /t -o /d", *RUN[1:])


def test_tasks_of_an_array_with_one_save_run_one_after_another() -> None:
    assert directives("--array", "1-4")[-1] == "array=1-4%1"
    assert "%a in --save" in remarks("slurm", "--array", "1-4", "--save", "/fsx/run", *RUN)
    assert directives("--array", "1,3-9:2%1")[-1] == "array=1,3-9:2%1"
    assert directives("--array", "0-9%4", "--save", "/fsx/run%a")[-1] == "array=0-9%4"


def test_each_task_of_an_array_has_its_save(cluster: Cluster, tmp_path: Path) -> None:
    stages = ("--convert", f"--to hf -o '{tmp_path}/h f%a'")
    script = render("slurm", "--array", "0-3", "--save", f"{tmp_path}/my run/%a", *stages, *RUN, "--wandb-project", "%a,100%", *W)
    shellcheck(script)
    done = cluster.run(script, SLURM_ARRAY_TASK_ID="2")
    assert done.returncode == 0, done.stderr
    train, convert = [call for call in cluster.calls if call.startswith("lt-")]
    assert train.startswith(f"lt-train --save {tmp_path}/my run/2 --mock-data")
    assert train.endswith("--wandb-project 2,100% --wandb-exp-name $SLURM_ARRAY_TASK_ID")
    assert convert == f"lt-convert --to hf -o {tmp_path}/h f2 @{tmp_path}/my run/2/checkpoints.manifest"
    assert (tmp_path / "my run/2/checkpoints.manifest").exists()


W = ("--wandb-exp-name", "$SLURM_ARRAY_TASK_ID")


def test_modules_and_a_virtual_environment(cluster: Cluster, tmp_path: Path) -> None:
    venv = tmp_path / "it's a venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/activate").write_text(f'PATH="{venv}/bin:$PATH"; export PATH VENV="$unset_variable yes"')
    (tmp_path / "bin/lt-train").rename(venv / "bin/lt-train")
    cluster.add(
        "srun", 'echo "$LOADED:$VENV:${SLURM_EXPORT_ENV-unset}" >> env; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"'
    )
    place = ("--save", f"{tmp_path}/run", "--module", "cuda/12.4", "--module", "gcc")
    script = render("slurm", *place, "--venv", f"{venv}/", *RUN)
    shellcheck(script)
    done = cluster.run(f"{MODULES}{script}", SLURM_EXPORT_ENV="NONE")
    assert done.returncode == 0, done.stderr
    assert set((tmp_path / "env").read_text().splitlines()) == {" cuda/12.4 gcc: yes:unset"}
    assert f"# The packages of all nodes: module load cuda/12.4 gcc, then the virtual environment {venv}/." in script
    missing = cluster.run(f"{MODULES}{script.replace('cuda/12.4 gcc ||', 'no ||')}")
    assert (missing.returncode, cluster.calls) == (78, [])
    assert "cannot load the modules" in missing.stderr
    (venv / "bin/activate").unlink()
    gone = cluster.run(f"{MODULES}{script}")
    assert (gone.returncode, cluster.calls) == (78, [])
    assert "no virtual environment on this node" in gone.stderr


def test_a_conda_environment(cluster: Cluster, tmp_path: Path) -> None:
    hook = 'conda() { [ "$2" != none ] || return 1; export CONDA="$unset_variable$*"; }'
    cluster.add("conda", f"cat << 'EOF'\n{hook}\nEOF")
    cluster.add("lt-train", f'echo "$CONDA" > {tmp_path}/env; {END}')
    script = render("slurm", "--save", f"{tmp_path}/run", "--conda", "/sw/my env", *RUN)
    shellcheck(script)
    done = cluster.run(script)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "env").read_text() == "activate /sw/my env\n"
    absent = cluster.run(script.replace("'/sw/my env'", "none"))
    assert absent.returncode == 78
    assert "no conda environment /sw/my env" in absent.stderr
    without = cluster.run(script, CONDA_EXE="/none/conda")
    assert (without.returncode, cluster.calls) == (78, [])
    assert "no conda on this node" in without.stderr


def test_nodes_without_the_tools_say_so_before_the_job_begins(cluster: Cluster, tmp_path: Path) -> None:
    script = render("slurm", "--save", f"{tmp_path}/run", "--convert", f"--to hf -o {tmp_path}/hf", *RUN)
    assert "those on PATH where the job is submitted" in script
    (tmp_path / "bin/lt-preprocess").unlink()
    assert cluster.run(script).returncode == 0
    (tmp_path / "bin/lt-convert").unlink()
    done = cluster.run(script)
    assert (done.returncode, cluster.calls) == (78, [])
    assert "no lt-convert on PATH: activate its environment before sbatch, or render with --venv" in done.stderr


def test_a_container_has_its_packages_and_may_need_modules(cluster: Cluster, tmp_path: Path) -> None:
    image = ("--image", "docker://lt", "--container-mounts", f"{tmp_path}", "--save", f"{tmp_path}/run")
    script = render("slurm", *image, "--module", "enroot", *RUN)
    shellcheck(script)
    assert "# The packages of all nodes: those in the container, after module load enroot." in script
    assert cluster.run(f"{MODULES}{script}").returncode == 0
    assert "command -v lt-train" not in script
