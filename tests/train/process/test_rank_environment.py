"""What lt-train reads from the environment of each launcher: a rank, a node on which it starts ranks, or nothing."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import SMALL, losses, quick_command, run, run_tasks

from lt_shared.console import BadConfig, Unavailable
from lt_shared.contracts.manifest import Dataset
from lt_train.process import rank_environment
from lt_train.process.rank_environment import Node, RankEnvironment

SLURM = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "3", "SLURM_STEP_NODELIST": "gpu[003-004]", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
PYTORCHJOB = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "run-master-0",
    "PET_MASTER_PORT": "23456",
    # The operator counts pods in RANK.
    "RANK": "1",
    "WORLD_SIZE": "16",
    "MASTER_ADDR": "run-master-0",
    "MASTER_PORT": "23456",
}
TORCHRUN = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "5"}
ONE_RANK = TORCHRUN | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        (TORCHRUN | {"RANK": "16"}, "rank 16 of 16"),
        (TORCHRUN | {"RANK": "-1"}, "rank -1 of 16"),
        (TORCHRUN | {"LOCAL_RANK": "8"}, "local rank 8 of 8"),
        (TORCHRUN | {"MASTER_PORT": "65536"}, "is no port"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "is no port"),
        (PYTORCHJOB | {"PET_NODE_RANK": "2"}, "node 2 of 2"),
        (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_RANK": "9", "MASTER_ADDR": "a"}, "rank 9 of 4"),
    ],
)
def test_a_place_that_cannot_be(variables: dict[str, str], reason: str) -> None:
    """Left over from another launcher: the rank would wait for the others until they time out."""
    with pytest.raises(BadConfig, match=reason):
        rank_environment.find(variables)


def test_a_machine_alone() -> None:
    for variables in ({}, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, {"OMPI_COMM_WORLD_SIZE": "1"}):
        assert rank_environment.find(variables) is None
        assert rank_environment.find_node(variables) is None


def test_srun_with_a_task_per_rank() -> None:
    task = SLURM | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
    assert rank_environment.find(task) == RankEnvironment(3, 1, 2, 4, "gpu003", 20000 + 77 * 7 + 3, "srun")
    assert rank_environment.find_node(task) is None


def test_srun_with_unequal_nodes() -> None:
    task = SLURM | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    found = rank_environment.find(task | {"SLURM_STEP_TASKS_PER_NODE": "2,1"})
    assert found is not None
    assert found.local_world_size == 1


def test_srun_with_a_task_per_node() -> None:
    task = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
    assert rank_environment.find(task) is None
    node = rank_environment.find_node(task)
    assert node == Node(1, 2, None, "gpu003", 20000 + 77 * 7 + 3, "srun")
    assert node.rank_environment(3, 8) == RankEnvironment(11, 3, 8, 16, "gpu003", node.master_port, "lt-train")


def test_a_pod_waits_for_the_name_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes with the pod's address; under Slurm all nodes have theirs, and a name without one is a mistake."""
    answers = iter([OSError(-2, "unknown"), OSError(-2, "unknown"), None])

    def lookup(host: str, port: object) -> None:
        if answer := next(answers):
            raise answer

    monkeypatch.setattr(rank_environment.socket, "getaddrinfo", lookup)
    monkeypatch.setattr(rank_environment, "POLL_SECONDS", 0.0)
    pod = rank_environment.find_node(PYTORCHJOB)
    assert pod
    rank_environment.check_rendezvous(pod)
    answers = iter([OSError(-2, "unknown")] * 2)
    monkeypatch.setattr(rank_environment, "POD_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="run-master-0 has no address"):
        rank_environment.check_rendezvous(pod)
    with pytest.raises(BadConfig, match="has no address"):
        rank_environment.check_rendezvous(RankEnvironment(0, 0, 1, 2, "n1", 20000, "srun"))


def test_two_steps_of_a_job_meet_on_other_ports() -> None:
    task = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1"}
    ports = {node.master_port for step in ("0", "1") if (node := rank_environment.find_node(task | {"SLURM_STEP_ID": step}))}
    assert len(ports) == 2


def test_mpirun() -> None:
    first_host = {"MASTER_ADDR": "w-0"}
    assert rank_environment.find_node(MPI | first_host | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}) == Node(
        2, 4, None, "w-0", 20000, "mpirun"
    )
    assert rank_environment.find(MPI | first_host | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}) == RankEnvironment(
        2, 0, 2, 4, "w-0", 20000, "mpirun"
    )
    here = rank_environment.find(MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "12345@1"})
    assert here is not None
    assert (here.master_address, here.local_world_size) == ("127.0.0.1", 4)


def test_mpirun_on_several_hosts_must_be_told_the_first() -> None:
    with pytest.raises(BadConfig, match="MASTER_ADDR"):
        rank_environment.find(MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"})


PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
NUMBERS = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
INTEL = PMI | {"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "1", "FLUX_JOB_ID": "f2"}


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        (PMI | {"PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}, "mpiexec"),
        (INTEL, "mpiexec"),
        (INTEL | {"PMIX_RANK": "1", "PMIX_NAMESPACE": "a"}, "mpiexec"),
        # Hydra starts itself by srun, with a task on each node.
        (INTEL | SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"}, "mpiexec"),
        (PMI | {"PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2"}, "mpiexec"),
        ({"PMI_ID": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, "mpiexec"),
        (
            {
                f"MV2_COMM_WORLD_{name}": value
                for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "1212", strict=True)
            },
            "MVAPICH",
        ),
        (
            {
                f"MVP_COMM_WORLD_{name}": value
                for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "1212", strict=True)
            },
            "MVAPICH",
        ),
        (
            {
                f"JSM_NAMESPACE_{name}": value
                for name, value in zip(("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"), "1212", strict=True)
            },
            "jsrun",
        ),
        (FLUX | PMI, "Flux"),
    ],
)
def test_launchers_of_mpi_programs(variables: dict[str, str], launcher: str) -> None:
    """The second of two processes of a machine. With other numbers on this host, the first host must be known."""
    rank = rank_environment.find(variables)
    assert rank is not None
    assert (rank.rank, rank.local_rank, rank.local_world_size, rank.world_size) == (1, 1, 2, 2)
    assert (rank.master_address, rank.launcher) == ("127.0.0.1", launcher)
    sizes = [name for name in variables if name.endswith(("_SIZE", "NRANKS")) and "LOCAL" in name]
    alone_here = variables | dict.fromkeys([*sizes], "1") | {"FLUX_JOB_NNODES": "2"}
    with pytest.raises(BadConfig, match=f"{launcher} started 2 processes .*_(RANK|ID)=1.*MASTER_ADDR") as caught:
        rank_environment.find(alone_here)
    assert "MASTER_ADDR=" in str(caught.value.hint)
    node = rank_environment.find_node(alone_here | {"MASTER_ADDR": "n1", "MASTER_PORT": "5"})
    assert node == Node(1, 2, None, "n1", 5, launcher)


def test_srun_comes_before_the_pmi_that_it_sets() -> None:
    task = SLURM | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
    rank = rank_environment.find(task | {"PMI_RANK": "3", "PMI_SIZE": "4", "PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.77.3"})
    assert rank == RankEnvironment(3, 1, 2, 4, "gpu003", 20000 + 77 * 7 + 3, "srun")


def test_two_jobs_on_a_machine_meet_on_other_ports() -> None:
    ports = {rank.master_port for job in "ab" if (rank := rank_environment.find(INTEL | {"PMI_JOBID": job}))}
    assert len(ports) == 2


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "prterun-a@1"}, ("PMIX_RANK=0", "PMIX_NAMESPACE=prterun-a@1")),
        ({"PMIX_RANK": "3"}, ("PMIX_RANK=3",)),
        ({"ALPS_APP_PE": "0"}, ("ALPS_APP_PE=0",)),
        ({"PALS_RANKID": "0", "PALS_LOCAL_RANKID": "0", "PALS_LOCAL_SIZE": "2"}, ("PALS_RANKID=0", "PALS_LOCAL_SIZE=2")),
        (PMI, ("PMI_LOCAL_SIZE", "PMI_RANK=1", "PMI_SIZE=2")),
        ({"PMI_RANK": "0"}, ("PMI_RANK=0",)),
        ({"PMI_SIZE": "2"}, ("PMI_RANK", "PMI_SIZE=2")),
        ({"PMI_RANK": "1", "PMI_SIZE": "1"}, ("PMI_RANK=1", "PMI_SIZE=1")),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, ("MPI_LOCALNRANKS=2",)),
        (INTEL | {"MPI_LOCALNRANKS": "3"}, ("3 of 2 processes",)),
        ({"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2", "FLUX_TASK_LOCAL_ID": "0"}, ("FLUX_JOB_NNODES", "FLUX_TASK_RANK=0")),
        (FLUX | {"FLUX_JOB_SIZE": "3", "FLUX_JOB_NNODES": "2"}, ("3 processes on 2 nodes",)),
        ({"JSM_NAMESPACE_RANK": "0"}, ("JSM_NAMESPACE_RANK=0",)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, ("SLURM_PROCID=1",)),
        ({"SLURM_STEP_NUM_TASKS": "2"}, ("SLURM_STEP_NUM_TASKS=2",)),
        # Task 0 of a step in a container that hides the step's size.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, ("SLURM_PROCID=0", "SLURM_NTASKS=4")),
        ({"PALS_LOCAL_RANKID": "0"}, ("PALS_LOCAL_RANKID=0",)),
        # torchrun on each host without --nnodes.
        (ONE_RANK | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, ("of 1 rank", "OMPI_COMM_WORLD_SIZE=2")),
        (ONE_RANK | {"PMI_RANK": "0", "PMI_SIZE": "2"}, ("of 1 rank", "PMI_SIZE=2")),
        (ONE_RANK | {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2"}, ("of 1 rank", "FLUX_JOB_SIZE=2")),
        (ONE_RANK | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, ("of 1 rank", "SLURM_STEP_NUM_TASKS=2")),
    ],
)
def test_a_process_of_a_job_of_unknown_size_does_not_train_alone(variables: dict[str, str], names: tuple[str, ...]) -> None:
    for find in (rank_environment.find, rank_environment.find_node):
        with pytest.raises(BadConfig) as caught:
            find(variables)
        assert all(name in str(caught.value) for name in names), caught.value
        assert caught.value.hint


@pytest.mark.parametrize(
    "variables",
    [
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {"PMI_RANK": "", "PMI_SIZE": ""},
        {"PMIX_RANK": "0"},
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "a", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMIX_RANK": "0", "PMIX_NAMESPACE": "slurm.pmix.7.0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        # The script of an sbatch job.
        {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "8"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "4294967290"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1", "FLUX_TASK_LOCAL_ID": "0", "FLUX_JOB_NNODES": "1"},
        {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
        {"MV2_COMM_WORLD_RANK": "0", "MV2_COMM_WORLD_SIZE": "1"},
        {"LSB_JOBID": "1", "PBS_JOBID": "2", "PALS_APID": "3"},
    ],
)
def test_a_process_alone_in_its_job(variables: dict[str, str]) -> None:
    assert rank_environment.find(variables) is None
    assert rank_environment.find_node(variables) is None


SECOND_OF_TWO = [
    {"MP_CHILD": "1", "MP_PROCS": "2"},
    {"MPI_RANKID": "1", "MPI_NRANKS": "2"},
    {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
    {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "2"},
    {"JAX_PROCESS_ID": "1", "JAX_NUM_PROCESSES": "2"},
    {"AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_NUM_NODES": "2"},
    {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"},
    {"DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2"},
    {"BEAKER_REPLICA_RANK": "1", "BEAKER_REPLICA_COUNT": "2"},
    {"MF_PARALLEL_NODE_INDEX": "1", "MF_PARALLEL_NUM_NODES": "2"},
    {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2"},
    {"MACHINE_RANK": "1", "NUM_MACHINES": "2"},
    {"NODE_RANK": "1", "NNODES": "2"},
    {"NODE_RANK": "1", "NUM_NODES": "2"},
]


@pytest.mark.parametrize("variables", SECOND_OF_TWO, ids=lambda variables: next(iter(variables)))
def test_a_process_on_each_node_does_not_train_alone(variables: dict[str, str]) -> None:
    """Either of two processes is refused, and one of one is alone. The hint's variables start the same process as a node."""
    index, count = variables
    alone = {index: "0", count: "1"}
    for one in (variables, variables | {index: "0"}):
        with pytest.raises(BadConfig, match=f"{index}={one[index]}, {count}=2.*each would train alone") as caught:
            rank_environment.find(one)
        hint = str(caught.value.hint)
        assert f"env -u {index} -u {count} lt-train" in hint
        stated = dict(word.split("=") for word in hint.split() if word.startswith("PET_"))
        assert rank_environment.find_node(one | stated) == Node(int(one[index]), 2, None, "HOST", 29500, "Kubernetes")
    for one in (alone, {index: "0"}, {count: "2"}, {index: "", count: "2"}, {index: "a name", count: "2"}):
        assert (rank_environment.find(one), rank_environment.find_node(one)) == (None, None)


VERTEX = {"cluster": {"workerpool0": ["h0:2222"], "workerpool1": ["h1:2222"]}, "task": {"type": "workerpool1", "index": 0}}
TENSORFLOW = {"cluster": {"chief": ["h0:2222"], "worker": ["h1:2222"]}, "task": {"type": "worker", "index": 0}}
HOSTS = {"SM_HOSTS": '["h0", "h1"]', "SM_CURRENT_HOST": "h1"}


@pytest.mark.parametrize(
    ("variables", "alone"),
    [
        (HOSTS, {"SM_HOSTS": '["h1"]', "SM_CURRENT_HOST": "h1"}),
        ({"CLUSTER_SPEC": json.dumps(VERTEX)}, {"CLUSTER_SPEC": json.dumps(VERTEX | {"cluster": {"workerpool0": ["h0:1"]}})}),
        ({"TF_CONFIG": json.dumps(TENSORFLOW)}, {"TF_CONFIG": json.dumps({"cluster": {}, "task": {"index": 0}})}),
        ({"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "h0\nh1"}, {"TF_CONFIG": "no JSON"}),
        ({"NODE_RANK": "1", "NNODES": "2", "MASTER_ADDR": "h0", "MASTER_PORT": "1"}, {"SM_HOSTS": "{}", "CLUSTER_SPEC": "[]"}),
    ],
)
def test_hosts_of_a_job(variables: dict[str, str], alone: dict[str, str]) -> None:
    with pytest.raises(BadConfig, match=r"one of 2 .*each would train alone") as caught:
        rank_environment.find_node(variables)
    assert "PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=h0 lt-train" in str(caught.value.hint)
    assert rank_environment.find_node(alone) is None


def test_a_number_on_another_node_is_refused_without_a_count() -> None:
    for name in ("PBS_NODENUM", "NODE_RANK"):
        with pytest.raises(BadConfig, match=f"one of several .{name}=1"):
            rank_environment.find({name: "1"})
        assert rank_environment.find({name: "0"}) is None


def test_a_torchrun_on_each_node_of_a_job() -> None:
    """All ranks of a torchrun with --nnodes are ranks; without it, each torchrun has all of its ranks on one node."""
    whole = ONE_RANK | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    assert rank_environment.find(whole | HOSTS) is not None
    for one in (ONE_RANK, whole | {"WORLD_SIZE": "2"}):
        with pytest.raises(BadConfig, match=r"SM_HOSTS has 2 hosts.*each would train alone") as caught:
            rank_environment.find(one | HOSTS)
        assert "torchrun --nnodes 2" in str(caught.value.hint)


def test_ranks_that_lt_train_starts_may_be_on_fewer_nodes_than_the_job() -> None:
    """A job of two tasks with a spare node, or after the loss of a node: one node has all ranks."""
    srun = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"}
    for job in (srun, HOSTS):
        with pytest.raises(BadConfig, match="each would train alone"):
            rank_environment.find(ONE_RANK | job)
        rank = rank_environment.find(ONE_RANK | job | {"LT_TRAIN_PARENT": "1"})
        assert rank is not None and rank.world_size == 1


def test_two_processes_of_mpiexec_are_two_ranks(tmp_path: Path, dataset: Dataset) -> None:
    arguments = quick_command(*SMALL, "--train-iters", "2", "--save", str(tmp_path / "run"), dataset.prefix)
    shared = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_JOBID": str(tmp_path)}
    tasks = run_tasks(arguments, [shared | {"PMI_RANK": rank, "MPI_LOCALRANKID": rank} for rank in ("0", "1")])
    assert [task.code for task in tasks] == [0, 0], tasks
    assert "2 ranks found in the environment of mpiexec" in tasks[0].err
    assert ("step", 2) in losses(tmp_path / "run")


def test_two_processes_with_other_settings_do_not_train_together(tmp_path: Path) -> None:
    """As ranks of two runs that have one port."""
    shared = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_JOBID": str(tmp_path)}
    tasks = [shared | {"PMI_RANK": rank, "MPI_LOCALRANKID": rank, "LT_TRAIN_SEED": rank} for rank in ("0", "1")]
    first, second = run_tasks(quick_command(*SMALL, "--mock-data", "--train-iters", "2"), tasks)
    assert (first.code, second.code, second.err.count("error")) == (78, 78, 0), (first, second)
    assert "has other settings than rank 0" in first.err
    assert ": seed\n" in first.err


def test_a_node_of_sagemaker_ends_with_78() -> None:
    result = run(*SMALL, "--mock-data", **HOSTS)
    assert (result.code, "SM_CURRENT_HOST=h1" in result.err) == (78, True)


def test_a_process_of_pmix_is_refused_with_its_variables() -> None:
    result = run(*SMALL, "--mock-data", PMIX_RANK="1", PMIX_NAMESPACE="prterun-a@1")
    assert result.code == 78
    assert "PMIX_RANK=1, PMIX_NAMESPACE=prterun-a@1" in result.err
    assert "env -u PMIX_RANK lt-train" in result.err


def test_pods_of_kubernetes() -> None:
    assert rank_environment.find(PYTORCHJOB) is None
    assert rank_environment.find_node(PYTORCHJOB) == Node(1, 2, None, "run-master-0", 23456, "Kubernetes")
    asked = rank_environment.find_node(PYTORCHJOB | {"PET_NPROC_PER_NODE": "8"})
    assert asked is not None
    assert asked.ranks == 8


def test_an_elastic_pytorchjob_needs_torchrun() -> None:
    with pytest.raises(BadConfig, match="elastic") as caught:
        rank_environment.find_node({"PET_NNODES": "1:64", "PET_RDZV_ENDPOINT": "etcd:2379"})
    assert "torchrun" in str(caught.value.hint)


@pytest.mark.parametrize("around", [{}, SLURM, MPI, PYTORCHJOB], ids=["alone", "in srun", "in mpirun", "in a pod"])
def test_torchrun_comes_before_what_started_it(around: dict[str, str]) -> None:
    assert rank_environment.find(around | TORCHRUN) == RankEnvironment(9, 1, 8, 16, "a", 5, "torchrun")
    assert rank_environment.find_node(around | TORCHRUN) is None


def test_half_a_place_is_an_error() -> None:
    for variables in ({"RANK": "0"}, {"LOCAL_RANK": "0"}, SLURM | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3"}):
        with pytest.raises(BadConfig):
            rank_environment.find(variables)
    with pytest.raises(BadConfig, match="malformed"):
        rank_environment.find(TORCHRUN | {"RANK": "first"})


STEP = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("variables", "reason", "remedy"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "but OMPI_COMM_WORLD_LOCAL_SIZE is not set", "OMPI_COMM"),
        ({"OMPI_COMM_WORLD_SIZE": "x"}, "OMPI_COMM_WORLD_SIZE='x'", "OMPI_COMM_WORLD_"),
        (SLURM | STEP | {"SLURM_STEP_TASKS_PER_NODE": "foo"}, "SLURM_STEP_TASKS_PER_NODE='foo'", "SLURM_STEP_"),
        (STEP, "but SLURM_STEP_NODELIST is not set", "SLURM_STEP_"),
        (SLURM | STEP | {"SLURM_STEP_NODELIST": "n[1-"}, r"SLURM_STEP_NODELIST='n\[1-'", "MASTER_ADDR"),
        (SLURM | STEP | {"SLURM_STEP_NODELIST": ""}, "SLURM_STEP_NODELIST=''", "MASTER_ADDR"),
        (PYTORCHJOB | {"PET_NODE_RANK": ""}, "PET_NODE_RANK=''", "PET_"),
        (TORCHRUN | {"MASTER_PORT": "a"}, "MASTER_PORT='a'", "MASTER_PORT"),
    ],
)
def test_a_malformed_variable_is_named_with_a_remedy(variables: dict[str, str], reason: str, remedy: str) -> None:
    with pytest.raises(BadConfig, match=reason) as caught:
        rank_environment.find(variables)
    assert remedy in str(caught.value.hint)


@pytest.mark.parametrize(
    ("node_list", "host"),
    [
        ("gpu[003-004,7],x1", "gpu003"),
        ("rack[1-2]node[03-4]", "rack1node03"),
        ("n[1-2]-efa", "n1-efa"),
        ("ip-10-0-0-1.ec2.internal,b", "ip-10-0-0-1.ec2.internal"),
        ("a", "a"),
    ],
)
def test_first_host(node_list: str, host: str) -> None:
    assert rank_environment.first_host(node_list) == host


@given(st.lists(st.integers(1, 200), min_size=1, max_size=8), st.data())
def test_tasks_per_node_of_any_step(counts: list[int], data: st.DataObject) -> None:
    """Slurm writes a run of equal numbers once."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    text = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
    assert rank_environment.tasks_per_node(text) == counts


def test_a_task_on_each_of_two_nodes_starts_its_ranks(tmp_path: Path, dataset: Dataset) -> None:
    """Both "nodes" are this machine: each starts one rank of a run of two."""
    shared = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_NODELIST": "localhost"}
    arguments = quick_command(*SMALL, "--train-iters", "3", "--save", str(tmp_path / "run"), dataset.prefix)
    nodes = run_tasks(
        arguments, [shared | {"SLURM_PROCID": index, "SLURM_NODEID": index, "SLURM_LOCALID": "0"} for index in ("0", "1")]
    )
    assert [node.code for node in nodes] == [0, 0], nodes
    assert "2 node(s) found in the environment of srun, rendezvous localhost:" in nodes[0].err
    assert (nodes[1].out, nodes[1].err) == ("", "")
    assert ("step", 3) in losses(tmp_path / "run")
    assert "on 2 cpu rank(s)" in nodes[0].err


def test_a_rendezvous_that_nobody_can_find_is_an_error_at_once() -> None:
    task = SLURM | {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": "no-such-host.invalid",
    }
    result = run(*SMALL, "--mock-data", **task, SLURM_PROCID="0", SLURM_LOCALID="0")
    assert result.code == 78
    assert "the rendezvous no-such-host.invalid has no address" in result.err
    assert "MASTER_ADDR" in result.err
