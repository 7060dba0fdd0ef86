"""Two jobs of one launcher on a machine: the ranks of each meet on a port of their own."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import environment

from lt_train.process import rank_environment

# One write, because the launcher joins lines of ranks that come in parts.
PRINT = (
    "import os; from lt_train.process import rank_environment; r = rank_environment.find();"
    " os.write(1, f'{(r.rank, r.local_rank, r.master_port)}\\n'.encode())"
)
MPIEXEC = shutil.which("mpiexec.hydra", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def ranks(*command: str, **variables: str) -> list[tuple[int, int, int]]:
    """The rank, local rank and port that each process of a job prints."""
    run = subprocess.run(command, env=environment() | variables, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return sorted(ast.literal_eval(line) for line in run.stdout.splitlines())


def check_two_jobs(*command: str) -> None:
    jobs = [ranks(*command) for _ in range(2)]
    for job in jobs:
        assert [(rank, local_rank) for rank, local_rank, _ in job] == [(0, 0), (1, 1)]
    ports = [{port for _, _, port in job} for job in jobs]
    assert [len(job_ports) for job_ports in ports] == [1, 1]
    assert ports[0] != ports[1]


def test_the_process_of_hydra_that_starts_the_ranks_is_the_job(tmp_path: Path) -> None:
    """The ranks may be below a shell. In a job file they have the number of the job in common with other calls of mpiexec."""
    proxy = tmp_path / "hydra_pmi_proxy"
    variables = "PMI_SIZE=2 MPI_LOCALNRANKS=2 SLURM_JOB_ID=7"
    proxy.write_text(
        f"""#!/bin/bash
for rank in 0 1; do
  env {variables} PMI_RANK=$rank MPI_LOCALRANKID=$rank bash -c '"$0" -c "$1"; exit $?' {sys.executable} "{PRINT}"
done
"""
    )
    proxy.chmod(0o755)
    check_two_jobs(str(proxy))


def test_ranks_whose_launcher_is_out_of_sight_meet_by_the_numbers_of_their_job() -> None:
    """In a container of its own each rank has another parent."""
    task = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    jobs = [{}, {"PBS_JOBID": "1"}, {"PBS_JOBID": "2"}, {"PBS_JOBID": "1", "I_MPI_HYDRA_UUID": "a"}, {"PALS_APID": "1"}]
    found = [rank_environment.find(task | job) for job in jobs]
    assert len({rank.master_port for rank in found if rank}) == len(jobs)


@pytest.mark.parametrize(
    "variables",
    [
        {"PMI_RANK": "2", "PMI_SIZE": "4", "PALS_LOCAL_RANKID": "0", "PALS_LOCAL_SIZE": "2", "PALS_APID": "{}"},
        {
            **{f"OMPI_COMM_WORLD_{name}": number for name, number in (("RANK", "2"), ("SIZE", "4"), ("LOCAL_RANK", "0"))},
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            "PMIX_NAMESPACE": "prterun-{}@1",
        },
        {"FLUX_TASK_RANK": "2", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "0", "FLUX_JOB_NNODES": "2", "FLUX_JOB_ID": "{}"},
    ],
)
def test_two_jobs_with_the_same_first_host_meet_on_other_ports(variables: dict[str, str]) -> None:
    ports = set()
    for job in ("1", "2"):
        rank = rank_environment.find({name: value.format(job) for name, value in variables.items()} | {"MASTER_ADDR": "n1"})
        assert rank is not None
        assert (rank.rank, rank.local_rank, rank.local_world_size, rank.world_size) == (2, 0, 2, 4)
        ports.add(rank.master_port)
    assert len(ports) == 2


@pytest.mark.skipif(MPIEXEC is None, reason="needs MPICH's mpiexec.hydra: pip install mpich")
def test_two_jobs_of_mpich() -> None:
    check_two_jobs(str(MPIEXEC), "-n", "2", sys.executable, "-c", PRINT)
