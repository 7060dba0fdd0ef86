"""Job files for sbatch: what they say, that shellcheck is content, and what they do, with stand-ins for Slurm and the tools."""

import re
from pathlib import Path

import pytest
from rendering import Cluster, render, shellcheck

from lt_shared.console import UsageError
from lt_train.config.instances import INSTANCES

END = """echo '{"v":1,"kind":"end","count":1}'"""
TRAIN = ("--model", "tiny", "--train-iters", "5")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    for tool in ("lt-preprocess", "lt-train", "lt-convert"):
        cluster.add(tool, END)
    return cluster


def stages(save: Path) -> tuple[str, ...]:
    return (
        *("--preprocess", "corpus --tokenizer 'my gpt2' --append-eod -o web", "--convert", "--to hf -o hf"),
        *("--save", str(save), *TRAIN),
    )


def test_the_directives() -> None:
    script = render("slurm", "--nodes", "4", "--job-name", "big", "--time", "4:00:00", "--save", "run", "--mock-data", *TRAIN)
    directives = re.findall(r"^#SBATCH --(.*)$", script, re.MULTILINE)
    assert directives == [
        *("job-name=big", "nodes=4", "ntasks-per-node=1", "exclusive", "mem=0", "wait-all-nodes=1", "requeue"),
        *("open-mode=append", "signal=USR1@300", "time=4:00:00"),
    ]
    counted = render("slurm", "--gpus-per-node", "8", "--save", "run", "--mock-data", *TRAIN)
    assert "#SBATCH --gpus-per-node=8\n" in counted


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        *(("90", 300), ("30:00", 300), ("1:30:00", 300), ("2-12", 300), ("6-00:00:00", 300), ("UNLIMITED", 300), ("0", 300)),
        *(("10", 120), ("2:30", 30), ("0:01:00", 12), ("0-0:5", 60)),
    ],
)
def test_the_signal_leaves_time_to_save_and_time_to_train(limit: str, seconds: int) -> None:
    script = render("slurm", "--time", limit, "--save", "run", "--mock-data", *TRAIN)
    assert f"#SBATCH --signal=USR1@{seconds}\n" in script


@pytest.mark.parametrize("limit", ["48:00:00", "90:59", "1-23:59:59", "infinite"])
def test_time_limits_of_sbatch(limit: str) -> None:
    assert f"#SBATCH --time={limit}\n" in render("slurm", "--time", limit, "--save", "run", "--mock-data", *TRAIN)


@pytest.mark.parametrize(
    "limit", ["25:61:00", "1:00:60", "10:60", "1-24", "1-0:60", "1-", "1:2:3:4", "1-1:2:3:4", "4h", "", "-1:00:00"]
)
def test_time_limits_that_are_slips(limit: str) -> None:
    """sbatch's parser (src/common/parse_time.c) checks no range: 25:61:00 would be 26 hours and a minute."""
    with pytest.raises(UsageError, match="--time") as caught:
        render("slurm", "--time", limit, "--save", "run", "--mock-data", *TRAIN)
    assert caught.value.hint and "days-hours[:minutes[:seconds]]" in caught.value.hint


@pytest.mark.parametrize("instance", sorted(name for name, instance in INSTANCES.items() if instance.gpu))
def test_variables_of_an_instance_type_come_after_those_of_the_user(instance: str, cluster: Cluster, tmp_path: Path) -> None:
    script = render("slurm", "--instance-type", f"ml.{instance}", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)
    shellcheck(script)
    cluster.add("lt-train", f"env > {tmp_path}/env; {END}")
    done = cluster.run(script, FI_PROVIDER="mine")
    assert done.returncode == 0, done.stderr
    variables = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    for name, value in INSTANCES[instance].environment().items():
        assert variables[name] == ("mine" if name == "FI_PROVIDER" else value)


def test_stages_of_one_job_pass_manifests_on(cluster: Cluster, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    script = render("slurm", *stages(run))
    shellcheck(script)
    done = cluster.run(script)
    assert done.returncode == 0, done.stderr
    tools = [call for call in cluster.calls if call.startswith("lt-")]
    assert tools == [
        "lt-preprocess corpus --tokenizer my gpt2 --append-eod -o web",
        f"lt-train @{run}/data.manifest --save {run} --model tiny --train-iters 5",
        f"lt-convert --to hf -o hf @{run}/checkpoints.manifest",
    ]
    assert {file.name for file in run.iterdir()} == {"data.manifest", "checkpoints.manifest"}


@pytest.mark.parametrize(
    ("tool", "body", "code", "requeued"),
    [
        ("lt-train", f"{END}; exit 0", 0, False),
        ("lt-train", "exit 75", 75, True),
        ("lt-train", "exit 76", 75, True),
        ("lt-train", "exit 78", 78, False),
        ("lt-train", "exit 1", 1, False),
        ("lt-train", "kill -9 $$", 137, False),
        ("lt-preprocess", "exit 65", 65, False),
        ("lt-preprocess", "kill -USR1 $$", 75, True),
        ("lt-convert", "exit 74", 74, False),
    ],
)
def test_only_what_can_continue_is_queued_again(
    cluster: Cluster, tmp_path: Path, tool: str, body: str, code: int, requeued: bool
) -> None:
    cluster.add(tool, body)
    done = cluster.run(render("slurm", *stages(tmp_path / "run")))
    assert done.returncode == code, done.stderr
    assert ("scontrol requeue 77" in cluster.calls) is requeued
    if tool == "lt-preprocess":
        assert not any(call.startswith("lt-train") for call in cluster.calls)
        assert not (tmp_path / "run/data.manifest").exists()
    if tool == "lt-train" and code:
        assert not any(call.startswith("lt-convert") for call in cluster.calls)


# A job's log as scontrol names it, and lt-monitor with a verdict on it: both write what they were asked to `calls`.
NAMES_LOG = "case $1 in show) echo '   StdOut=/fsx/slurm-77.out' ;; esac"
BLAMES = 'case $2 in --exclude-node) echo --exclude=n1,n2 ;; *) echo "xid: node n1: Xid 79" ;; esac; exit 69'


def test_a_job_that_ends_says_why_in_its_log(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("scontrol", NAMES_LOG)
    cluster.add("lt-monitor", BLAMES)
    cluster.add("lt-train", "exit 78")
    script = render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)
    shellcheck(script)
    done = cluster.run(script)
    assert done.returncode == 78
    assert "lt-monitor: xid: node n1: Xid 79\n" in done.stderr
    assert "lt-monitor tail-cause /fsx/slurm-77.out" in cluster.calls
    assert not any(call.startswith(("scontrol requeue", "scontrol update")) for call in cluster.calls)


def test_a_job_that_is_queued_again_leaves_a_broken_node_out(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("scontrol", NAMES_LOG)
    cluster.add("lt-monitor", BLAMES)
    cluster.add("lt-train", "exit 76")
    script = render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)
    assert cluster.run(script).returncode == 75
    # Slurm refuses the change for a job that still runs.
    assert cluster.calls[-2:] == ["scontrol requeue 77", "scontrol update JobId=77 ExcNodeList=n1,n2"]
    # Those that were left out before stay so.
    cluster.add("scontrol", f"echo ' ReqNodeList=(null) ExcNodeList=n[7-9] '; {NAMES_LOG}")
    assert cluster.run(script).returncode == 75
    assert cluster.calls[-1] == "scontrol update JobId=77 ExcNodeList=n[7-9],n1,n2"
    cluster.add("scontrol", f"echo ' ReqNodeList=(null) ExcNodeList=(null)'; {NAMES_LOG}")
    assert cluster.run(script).returncode == 75
    assert cluster.calls[-1] == "scontrol update JobId=77 ExcNodeList=n1,n2"
    cluster.add("lt-monitor", "exit 0")
    assert cluster.run(script).returncode == 75
    assert cluster.calls[-1] == "scontrol requeue 77"


def test_slurm_ends_the_script_when_it_queues_the_job_again(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("scontrol", f"{NAMES_LOG}; [ $1 != requeue ] || kill -TERM $PPID")
    cluster.add("lt-monitor", BLAMES)
    cluster.add("lt-train", "exit 75")
    assert cluster.run(render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)).returncode == 75
    assert cluster.calls[-1] == "scontrol update JobId=77 ExcNodeList=n1,n2"


@pytest.mark.parametrize("broken", ["lt-monitor", "scontrol"])
def test_a_verdict_that_fails_changes_nothing(cluster: Cluster, tmp_path: Path, broken: str) -> None:
    cluster.add("lt-monitor", "exit 70" if broken == "lt-monitor" else BLAMES)
    cluster.add("scontrol", "[ $1 = requeue ]" if broken == "scontrol" else NAMES_LOG)
    cluster.add("lt-train", "exit 75")
    script = render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)
    assert cluster.run(script.replace('case "$(scontrol show config)"', 'case ""')).returncode == 75
    assert "scontrol requeue 77" in cluster.calls


@pytest.mark.parametrize(("kills", "number", "runs", "code"), [(2, 9, 3, 0), (9, 9, 4, 137), (1, 15, 2, 0)])
def test_a_killed_rank_starts_again_within_the_job(
    cluster: Cluster, tmp_path: Path, kills: int, number: int, runs: int, code: int
) -> None:
    cluster.add("lt-train", f'[ "$(grep -c ^lt-train {tmp_path}/calls)" -gt {kills} ] || kill -{number} $$; {END}')
    done = cluster.run(render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN))
    assert done.returncode == code, done.stderr
    assert sum(call.startswith("lt-train") for call in cluster.calls) == runs
    assert not any(call.startswith("scontrol requeue") for call in cluster.calls)


@pytest.mark.parametrize("code", [69, 70, 74])
def test_an_attempt_that_failed_starts_again_within_the_job(cluster: Cluster, tmp_path: Path, code: int) -> None:
    cluster.add("lt-train", f'[ "$(grep -c ^lt-train {tmp_path}/calls)" -gt 1 ] || exit {code}; {END}')
    done = cluster.run(render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN))
    assert done.returncode == 0, done.stderr
    assert sum(call.startswith("lt-train") for call in cluster.calls) == 2


SPARE = ("--nodes", "3", "--spare-nodes", "1", "--max-restarts", "2", "--save", "run", "--mock-data", *TRAIN)


def test_a_job_with_a_spare_node_survives_the_loss_of_a_node(cluster: Cluster) -> None:
    """Its srun ends with the status of the lost node, and the run with the last line of its manifest."""
    cluster.add("lt-train", f"{END}; exit 137")
    script = render("slurm", *SPARE)
    shellcheck(script)
    assert re.findall(r"^#SBATCH --(nodes=.|no-kill)$", script, re.MULTILINE) == ["nodes=3", "no-kill"]
    done = cluster.run(script)
    assert done.returncode == 0, done.stderr
    (call,) = [call for call in cluster.calls if call.startswith("srun") and "lt-train" in call]
    assert call.startswith("srun --kill-on-bad-exit=0 --no-kill ")
    assert "--auto-resume" not in script
    plain = render("slurm", "--nodes", "2", "--max-restarts", "2", "--save", "run", "--mock-data", *TRAIN)
    assert "srun --kill-on-bad-exit=1 " in plain
    assert "no-kill" not in plain


def test_a_job_without_enough_nodes_is_queued_again(cluster: Cluster) -> None:
    cluster.add("lt-train", "exit 69")
    cluster.add("srun", 'case "$*" in *" true") exit 1 ;; esac; while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"')
    assert cluster.run(render("slurm", *SPARE)).returncode == 75
    assert sum(call.startswith("lt-train") for call in cluster.calls) == 1
    assert cluster.calls[-1] == "scontrol requeue 77"


def test_a_signal_to_the_task_waits_for_lt_train(cluster: Cluster, tmp_path: Path) -> None:
    """Slurm signals every process of a step, the shell around lt-train too."""
    cluster.add(
        "lt-train", f"trap 'sleep 0.3; echo saved >> {tmp_path}/calls; exit 75' USR1; kill -USR1 $PPID $$; sleep 5 & wait"
    )
    done = cluster.run(render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN))
    assert done.returncode == 75, done.stderr
    assert cluster.calls[-1] == "scontrol requeue 77"
    assert "saved" in cluster.calls


def test_a_node_that_is_done_with_75_does_not_end_the_others(cluster: Cluster, tmp_path: Path) -> None:
    """srun --kill-on-bad-exit must not see the code of a rank that has saved."""
    codes = tmp_path / "codes"
    cluster.add("srun", f'while [ "${{1#--}}" != "$1" ]; do shift; done; "$@"; code=$?; echo $code >> {codes}; exit $code')
    cluster.add("lt-train", "exit 75")
    assert cluster.run(render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)).returncode == 75
    assert set(codes.read_text().split()) == {"0"}


@pytest.mark.parametrize(("reason", "code"), [(78, 78), (76, 75)])
def test_a_reason_is_not_hidden_by_the_nodes_that_srun_ends_for_it(
    cluster: Cluster, tmp_path: Path, reason: int, code: int
) -> None:
    """srun's status is the largest of its tasks': that of one that it has ended is 143."""
    body = 'while [ "${1#--}" != "$1" ]; do shift; done; "$@"; code=$?; exit $((code > 0 && code < 143 ? 143 : code))'
    cluster.add("srun", body)
    cluster.add("lt-train", f"exit {reason}")
    assert cluster.run(render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)).returncode == code
    assert sum(call.startswith("lt-train") for call in cluster.calls) == 1


@pytest.mark.parametrize("plugin", ["task/affinity,task/cgroup", "task/none"])
def test_cores_are_freed_where_slurm_binds_them(cluster: Cluster, tmp_path: Path, plugin: str) -> None:
    cluster.add("scontrol", f"echo 'TaskPlugin              = {plugin}'")
    assert cluster.run(render("slurm", *stages(tmp_path / "run"))).returncode == 0
    calls = [call for call in cluster.calls if call.startswith("srun") and "dcgmi" not in call]
    assert len(calls) == 3
    assert all(("--cpu-bind=none" in call) is ("affinity" in plugin) for call in calls)


def test_profiling_is_paused_where_dcgm_is(cluster: Cluster, tmp_path: Path) -> None:
    script = render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)
    assert cluster.run(script).returncode == 0
    cluster.add("dcgmi", "exit 1")
    cluster.add("lt-train", "exit 78")
    assert cluster.run(script).returncode == 78
    calls = [call for call in cluster.calls if call.startswith(("dcgmi", "lt-train"))]
    assert [call.split()[0] for call in calls] == ["dcgmi", "lt-train", "dcgmi"]
    assert (calls[0], calls[2]) == ("dcgmi profile --pause", "dcgmi profile --resume")


def test_the_container(cluster: Cluster, tmp_path: Path) -> None:
    arguments = ("--save", f"{tmp_path}/run", "--mock-data", *TRAIN, "--container-mounts", f"/a b:/a,{tmp_path}")
    script = render("slurm", "--image", f"{tmp_path}/lt.sqsh", *arguments)
    shellcheck(script)
    missing = cluster.run(script)
    assert missing.returncode == 78
    assert "enroot import -o" in missing.stderr
    assert cluster.calls == []
    (tmp_path / "lt.sqsh").touch()
    assert cluster.run(script).returncode == 0
    (call,) = [call for call in cluster.calls if "lt-train" in call and call.startswith("srun")]
    assert f"--container-image={tmp_path}/lt.sqsh --container-mounts=/a b:/a,{tmp_path} bash" in call
    # The names that the scripts around Megatron-LM read.
    (tmp_path / "other.sqsh").touch()
    assert cluster.run(script, IMAGE=f"{tmp_path}/other.sqsh", FSX_MOUNT="/fsx:/fsx").returncode == 0
    assert any(f"--container-image={tmp_path}/other.sqsh --container-mounts=/fsx:/fsx" in call for call in cluster.calls)
    registry = render("slurm", "--image", "docker://nvcr.io#nvidia/pytorch:25.06-py3", *arguments)
    assert "-e" not in registry.partition("IMAGE=")[2].partition("container=(")[0]


@pytest.mark.parametrize(
    ("mounts", "arguments", "reason"),
    [
        ("/fsx:/fsx", ("--save", "run"), "--save run is not on a directory of"),
        ("/fsx:/fsx", ("--save", "/home/me/run"), "--save /home/me/run is not on"),
        ("/fsx:/fsx", ("--save", "/fsx/run", "--tensorboard-dir", "curves"), "--tensorboard-dir curves is not on"),
        ("/fsx:/fsx", ("--save", "/fsx/run", "--load", "/home/base"), "--load /home/base is not on"),
        ("/fsx:/fsx", ("--save", "/fsx/run", "data/web"), "DATA data/web is not on"),
        ("/fsx:/fsx", ("--save", "/fsx/run", "--convert", "--to hf -o hf"), "--convert '-o ...' hf is not on"),
        ("/lustre/me:/fsx", ("--save", "/fsx/run"), "under one path"),
        ("/lustre/me:/fsx,/data", ("--save", "/data/run", "--load", "/fsx/run"), None),
        ("/data:/data:ro,/fsx:/fsx:rw", ("--save", "/fsx/run", "--load", "/data/run"), None),
        ("/fsx:/fsx", ("--save", "s3://bucket/run"), None),
    ],
)
def test_what_would_be_gone_with_the_container(mounts: str, arguments: tuple[str, ...], reason: str | None) -> None:
    data = () if "data/web" in arguments else ("--mock-data",)
    words = ("slurm", "--image", "/fsx/lt.sqsh", "--container-mounts", mounts, *TRAIN, *data, *arguments)
    if reason is None:
        assert "--container-image" in render(*words)
        return
    with pytest.raises(UsageError, match=re.escape(reason)) as caught:
        render(*words)
    assert caught.value.hint and "or a URL" in caught.value.hint


@pytest.mark.parametrize("is_hyperpod", [True, False])
def test_auto_resume_on_hyperpod_alone(cluster: Cluster, tmp_path: Path, is_hyperpod: bool) -> None:
    script = render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)
    assert "[ -d /opt/sagemaker_cluster ]" in script
    mark = tmp_path / "sagemaker_cluster"
    if is_hyperpod:
        mark.mkdir()
    assert cluster.run(script.replace("/opt/sagemaker_cluster", str(mark))).returncode == 0
    assert any("--auto-resume=1" in call for call in cluster.calls) is is_hyperpod


def test_words_arrive_as_they_were_given(cluster: Cluster, tmp_path: Path) -> None:
    odd = 'it\'s $(touch pwned) `id` "x" {a,b} * #}'
    words = ("--split", "98,2,0", "--wandb-exp-name", odd, "--wandb-project", "p")
    container = ("--image", f"{tmp_path}/}}'$(id)`.sqsh", "--container-mounts", f"{tmp_path},/a b:/c {odd}")
    (tmp_path / "}'$(id)`.sqsh").touch()
    script = render("slurm", "--save", f"{tmp_path}/{odd}", "--mock-data", *container, *TRAIN, *words)
    shellcheck(script)
    options = tmp_path / "options"
    cluster.add("srun", f'printf "%s\\n" "$@" >> {options}; while [ "${{1#--}}" != "$1" ]; do shift; done; exec "$@"')
    cluster.add("lt-train", f'printf "%s\\n" "$@" > {tmp_path}/words; {END}')
    done = cluster.run(script)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "words").read_text().splitlines()[-len(words) :] == list(words)
    assert f"--container-image={tmp_path}/}}'$(id)`.sqsh\n--container-mounts={tmp_path},/a b:/c {odd}\n" in options.read_text()
    assert (tmp_path / odd / "checkpoints.manifest").exists()
    assert not list(tmp_path.glob("**/pwned"))


def test_sizes_from_the_environment(cluster: Cluster, tmp_path: Path) -> None:
    sizes = ("--num-layers", "36", "--hidden-size", "4096", "--num-attention-heads", "32")
    script = render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *sizes)
    shellcheck(script)
    variables = {"NUM_LAYERS": "48", "HIDDEN_SIZE": "8192", "NUM_ATTENTION_HEADS": "64", "GLOBAL_BATCH_SIZE": "288"}
    assert cluster.run(script, **variables).returncode == 0
    call = next(call for call in cluster.calls if call.startswith("lt-train"))
    assert call.endswith("--num-layers 48 --hidden-size 8192 --num-attention-heads 64 --global-batch-size 288")


def test_a_layout_in_the_environment_takes_the_place_of_auto(cluster: Cluster, tmp_path: Path) -> None:
    script = render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN, "--parallel", "auto")
    shellcheck(script)
    assert cluster.run(script, TENSOR_PARALLEL="2").returncode == 0
    (own,) = (call for call in cluster.calls if call.startswith("lt-train"))
    assert own.endswith("--parallel auto --tensor-model-parallel-size 2 --parallel manual")
    assert cluster.run(script, MICRO_BATCH_SIZE="2").returncode == 0
    assert not any("manual" in call for call in cluster.calls)


def test_sizes_do_not_make_another_model_of_a_preset(cluster: Cluster, tmp_path: Path) -> None:
    script = render("slurm", "--save", f"{tmp_path}/run", "--mock-data", *TRAIN)
    shellcheck(script)
    refused = cluster.run(script, HIDDEN_SIZE="8192")
    assert refused.returncode == 78
    assert "cannot change the model tiny" in refused.stderr
    assert cluster.run(script, MICRO_BATCH_SIZE="4").returncode == 0
    assert any(call.endswith("--micro-batch-size 4") for call in cluster.calls if call.startswith("lt-train"))


def test_a_job_for_each_stage(cluster: Cluster, tmp_path: Path) -> None:
    """Each job is given to a stand-in for sbatch, then run in the order of the dependencies."""
    cluster.add("sbatch", f'n=$(ls {tmp_path}/job-* 2> /dev/null | wc -l); cat > {tmp_path}/job-$n; echo "$((100 + n));cluster"')
    script = render("slurm", "--chain", "dependency", "--nodes", "2", *stages(tmp_path / "run"))
    shellcheck(script)
    done = cluster.run(script)
    assert done.stdout == "preprocess 100\ntrain 101\nconvert 102\n", done.stderr
    assert cluster.calls == [
        "sbatch --parsable",
        "sbatch --parsable --dependency=afterok:100 --kill-on-invalid-dep=yes",
        "sbatch --parsable --dependency=afterok:101 --kill-on-invalid-dep=yes",
    ]
    nodes = []
    for number, tool in enumerate(("lt-preprocess", "lt-train", "lt-convert")):
        job = (tmp_path / f"job-{number}").read_text()
        shellcheck(job)
        nodes += re.findall(r"--nodes=(\d)$", job, re.MULTILINE)
        assert cluster.run(job).returncode == 0
        assert [call.split()[0] for call in cluster.calls if call.startswith("lt-")] == [tool]
    assert nodes == ["1", "2", "1"]
