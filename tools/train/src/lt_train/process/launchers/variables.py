"""The environment variables that number a launcher's or scheduler's processes, and functions that read them."""

import dataclasses
from collections.abc import Mapping, Sequence

from lt_shared.console import BadConfig

MPIEXEC = "mpiexec"
TORCHRUN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
REMEDY = "start with srun, mpirun or torchrun, or unset what one of them has left ({}) to let lt-train start its own ranks"


@dataclasses.dataclass(frozen=True)
class Variables:
    """A launcher's variables for the numbers and the count of its processes. The first name that is set is read.

    `local_size` may be unset if `nodes` is set: Flux counts the nodes only. `job` distinguishes jobs on one machine, and
    `job_of_hosts` jobs whose processes are on several machines. `address` names the first host. `pass_address` is a command that
    passes MASTER_ADDR to all processes.
    """

    launcher: str
    rank: tuple[str, ...]
    size: tuple[str, ...] = ()
    local_rank: tuple[str, ...] = ()
    local_size: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    job_of_hosts: tuple[str, ...] = ()
    address: tuple[str, ...] = ()
    pass_address: str = "export MASTER_ADDR=HOST, the host of the first process, before mpiexec"

    def assignments(self, environment: Mapping[str, str]) -> str:
        """List the variables that are set, with their values, for a message."""
        names = (*self.rank, *self.size, *self.local_rank, *self.local_size, *self.nodes, *self.job)
        return ", ".join(f"{name}={environment[name]:.40}" for name in names if environment.get(name))


OPEN_MPI = Variables(
    "mpirun",
    rank=("OMPI_COMM_WORLD_RANK",),
    size=("OMPI_COMM_WORLD_SIZE",),
    local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
    local_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
    job=("PMIX_NAMESPACE",),
    job_of_hosts=("PMIX_NAMESPACE",),
    pass_address='mpirun -x MASTER_ADDR="$(head -n 1 HOSTFILE | cut -d " " -f 1)" lt-train ...',
)
# PMI is last: MVAPICH and Flux set its variables, too, but not those that count the processes of a host.
LAUNCHERS = (
    OPEN_MPI,
    *(
        Variables(
            "MVAPICH",
            rank=(f"{prefix}_COMM_WORLD_RANK",),
            size=(f"{prefix}_COMM_WORLD_SIZE",),
            local_rank=(f"{prefix}_COMM_WORLD_LOCAL_RANK",),
            local_size=(f"{prefix}_COMM_WORLD_LOCAL_SIZE",),
            job=("PMI_JOBID",),
        )
        for prefix in ("MV2", "MVP")
    ),
    Variables(
        "jsrun",
        rank=("JSM_NAMESPACE_RANK",),
        size=("JSM_NAMESPACE_SIZE",),
        local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
        local_size=("JSM_NAMESPACE_LOCAL_SIZE",),
        job=("PMIX_NAMESPACE", "LSB_JOBID"),
        job_of_hosts=("PMIX_NAMESPACE",),
        pass_address="jsrun -E MASTER_ADDR=HOST lt-train ...",
    ),
    Variables(
        "Flux",
        rank=("FLUX_TASK_RANK",),
        size=("FLUX_JOB_SIZE",),
        local_rank=("FLUX_TASK_LOCAL_ID",),
        nodes=("FLUX_JOB_NNODES",),
        job=("FLUX_JOB_ID",),
        job_of_hosts=("FLUX_JOB_ID",),
        pass_address='flux run --env MASTER_ADDR="$(flux hostlist --nth=0 local)" lt-train ...',
    ),
    # MPICH, Intel MPI and Hydra have MPI_LOCALRANKID beside PMI_RANK, Cray's PMI has PMI_LOCAL_RANK. PALS numbers all processes,
    # but counts only those on the host. PMI counts all processes, unless PALS uses PMIx.
    Variables(
        MPIEXEC,
        rank=("PMI_RANK", "PMI_ID", "PALS_RANKID"),
        size=("PMI_SIZE", "PALS_NRANKS"),
        local_rank=("PMI_LOCAL_RANK", "MPI_LOCALRANKID", "PALS_LOCAL_RANKID"),
        local_size=("PMI_LOCAL_SIZE", "MPI_LOCALNRANKS", "PALS_LOCAL_SIZE"),
        job=("PALS_APID", "I_MPI_HYDRA_UUID", "PMI_JOBID", "PBS_JOBID", "SLURM_JOB_ID"),
        job_of_hosts=("PALS_APID",),
    ),
)
SLURM = Variables("srun", rank=("SLURM_PROCID",), size=("SLURM_STEP_NUM_TASKS",), local_rank=("SLURM_LOCALID",))
# A container may pass on only some variables, without the size of the step: the job's size is read then.
SLURM_STEP = dataclasses.replace(SLURM, size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"))
# Slurm's numbers of an sbatch script, of an interactive shell and of other steps without tasks begin here.
RESERVED_STEPS = 0xFFFFFFF0
# These launchers number a process, but count no processes.
UNCOUNTED = (Variables("PMIx", rank=("PMIX_RANK",), job=("PMIX_NAMESPACE",)), Variables("aprun", rank=("ALPS_APP_PE",)))

# Schedulers that start one process on each node, and launchers whose rendezvous lt-train cannot read (job_nodes.py). These
# variables number a process and count the processes, but no two schedulers name the first host alike.
NODE_SCHEDULERS = (
    Variables("poe", rank=("MP_CHILD",), size=("MP_PROCS",)),
    Variables("Platform MPI", rank=("MPI_RANKID",), size=("MPI_NRANKS",)),
    Variables("mpirun", rank=("MPIRUN_RANK",), size=("MPIRUN_NPROCS",)),
    Variables("horovodrun", rank=("HOROVOD_RANK",), size=("HOROVOD_SIZE",), address=("HOROVOD_GLOO_RENDEZVOUS_ADDR",)),
    Variables("Paddle's launcher", rank=("PADDLE_TRAINER_ID",), size=("PADDLE_TRAINERS_NUM",)),
    Variables("JAX's launcher", rank=("JAX_PROCESS_ID",), size=("JAX_NUM_PROCESSES",)),
    Variables(
        "AWS Batch",
        rank=("AWS_BATCH_JOB_NODE_INDEX",),
        size=("AWS_BATCH_JOB_NUM_NODES",),
        address=("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",),
    ),
    Variables("SkyPilot", rank=("SKYPILOT_NODE_RANK",), size=("SKYPILOT_NUM_NODES",), address=("SKYPILOT_NODE_IPS",)),
    Variables("dstack", rank=("DSTACK_NODE_RANK",), size=("DSTACK_NODES_NUM",), address=("DSTACK_MASTER_NODE_IP",)),
    Variables(
        "Beaker", rank=("BEAKER_REPLICA_RANK",), size=("BEAKER_REPLICA_COUNT",), address=("BEAKER_LEADER_REPLICA_HOSTNAME",)
    ),
    Variables("Metaflow", rank=("MF_PARALLEL_NODE_INDEX",), size=("MF_PARALLEL_NUM_NODES",), address=("MF_PARALLEL_MAIN_IP",)),
    Variables("a LeaderWorkerSet", rank=("LWS_WORKER_INDEX",), size=("LWS_GROUP_SIZE",), address=("LWS_LEADER_ADDRESS",)),
    Variables("pbsdsh", rank=("PBS_NODENUM",)),
    Variables("accelerate", rank=("MACHINE_RANK",), size=("NUM_MACHINES",), address=("MAIN_PROCESS_IP", "MASTER_ADDR")),
    # Names that scripts around torchrun have, and Lightning, MosaicML and Azure ML.
    Variables("a launcher", rank=("NODE_RANK",), size=("NNODES", "NUM_NODES", "NODE_COUNT"), address=("MASTER_ADDR",)),
)


def read_local_size(environment: Mapping[str, str], variables: Variables, size: int) -> int:
    """Read the number of processes on this host. Raise BadConfig if it is unknown or exceeds `size`."""
    if variables.nodes and not any(environment.get(name) for name in variables.local_size):
        nodes = read_count(environment, variables, variables.nodes)
        if nodes < 1 or size % nodes:
            raise BadConfig(
                f"{variables.launcher} started {size} processes on {nodes} nodes ({variables.assignments(environment)}), and does"
                " not say how many are on this one",
                "start as many on each node",
            )
        return size // nodes
    local_size = read_count(environment, variables, variables.local_size)
    if not 1 <= local_size <= size:
        raise BadConfig(
            f"the environment describes {local_size} of {size} processes on this host ({variables.assignments(environment)})",
            _remedy(variables, environment),
        )
    return local_size


def check_alone(environment: Mapping[str, str]) -> None:
    """Raise BadConfig if the environment numbers this process but counts no processes: each process would train alone.

    The script of an sbatch job is task 0 of as many tasks as the job has, and is alone.
    """
    is_step = 0 <= first_number(environment, ("SLURM_STEP_ID", "SLURM_STEPID"), -1) < RESERVED_STEPS
    slurm_variables = SLURM_STEP if is_step else SLURM
    all_variables = (*LAUNCHERS, *UNCOUNTED, slurm_variables)
    is_counted = any(first_number(environment, variables.size, 0) == 1 for variables in all_variables)
    for variables in all_variables:
        numbers = [first_number(environment, names, 0) for names in (variables.rank, variables.local_rank)]
        numbers += [first_number(environment, names, 1) - 1 for names in (variables.size, variables.local_size, variables.nodes)]
        is_numbered = _is_numbered(environment, variables) and variables is not slurm_variables
        if variables in UNCOUNTED and variables.job:
            # PMIx has no job without a name space.
            is_numbered &= any(environment.get(name) for name in variables.job)
        if max(numbers) > 0 or (is_numbered and not is_counted):
            raise BadConfig(
                f"{variables.launcher} numbers the processes of a job ({variables.assignments(environment)}), and the"
                " environment does not say how many there are: each would train alone",
                _remedy(variables, environment),
            )


def check_whole(environment: Mapping[str, str], world_size: int) -> None:
    """Raise BadConfig if torchrun counts fewer ranks than a launcher has processes: each process would train alone."""
    for variables in (*LAUNCHERS, SLURM):
        size = first_number(environment, variables.size, 1)
        if size > world_size:
            raise BadConfig(
                f"torchrun made a run of {world_size} rank(s) in one of {size} processes of {variables.launcher}"
                f" ({variables.assignments(environment)}): each would train alone",
                f"torchrun --nnodes {size} --rdzv-backend c10d --rdzv-endpoint HOST:29500 ..., HOST being the first host; for a"
                f" process that is alone: env {_unset(variables, environment)} torchrun ...",
            )


def _is_numbered(environment: Mapping[str, str], variables: Variables) -> bool:
    """Whether the process has a number in its job, or on a host whose processes are not counted."""
    if any(environment.get(name) for name in variables.rank):
        return True
    return any(map(environment.get, variables.local_rank)) and not any(map(environment.get, variables.local_size))


def read_count(environment: Mapping[str, str], variables: Variables, names: Sequence[str]) -> int:
    """Read the number in the first variable that is set. Raise BadConfig if all are unset."""
    if not any(environment.get(name) for name in names):
        raise BadConfig(
            f"the environment describes a rank, but {' or '.join(names)} is not set ({variables.assignments(environment)})",
            _remedy(variables, environment),
        )
    return first_number(environment, names, 0)


def _remedy(variables: Variables, environment: Mapping[str, str]) -> str:
    return (
        f"set {', '.join(TORCHRUN_VARIABLES)} and LOCAL_WORLD_SIZE for each process, or start one process on each node with srun"
        f" or torchrun; for a process that is alone: env {_unset(variables, environment)} lt-train ..."
    )


def _unset(variables: Variables, environment: Mapping[str, str]) -> str:
    """Return the options of the program env that hide the numbers of `variables`."""
    names = (*variables.rank, *variables.size, *variables.local_rank, *variables.local_size, *variables.nodes)
    return " ".join(f"-u {name}" for name in names if name in environment)


def read_text(environment: Mapping[str, str], name: str) -> str:
    if name not in environment:
        raise BadConfig(f"the environment describes a rank, but {name} is not set", REMEDY.format(variable_pattern(name)))
    return environment[name]


def read_number(environment: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    """Read an integer. Return `otherwise`, unless it is None, for a variable that is unset or empty."""
    if otherwise is not None and not environment.get(name):
        return otherwise
    text = read_text(environment, name)
    try:
        return int(text)
    except ValueError:
        raise BadConfig(
            f"the environment describes a rank with a malformed number: {name}={text!r}", REMEDY.format(variable_pattern(name))
        ) from None


def first_number(environment: Mapping[str, str], names: Sequence[str], otherwise: int) -> int:
    """Read the number in the first variable that is set; `otherwise` if all are unset."""
    return next((read_number(environment, name) for name in names if environment.get(name)), otherwise)


def variable_pattern(name: str) -> str:
    """Return a pattern for the launcher's variables, for a message."""
    prefixes = ("OMPI_COMM_WORLD_", "MV2_COMM_WORLD_", "MVP_COMM_WORLD_", "JSM_NAMESPACE_", "SLURM_STEP_", "PET_")
    return next((f"{prefix}*" for prefix in prefixes if name.startswith(prefix)), name)
