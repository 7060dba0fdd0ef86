"""A real Slurm with two nodes on this machine, for a session of tests, and a real cron.

They need root and Debian's slurm-wlm, munge, cron and faketime, and are skipped with the reason where that is not to be had.

Each node has one of this machine's cores, and namespaces of its own for its host name and a table of hosts in which n1 and n2
have addresses. What runs there finds itself on two hosts that know each other by name, as on a cluster, and each finds a disk of
its own in `disk`, which is `disk.n1` or `disk.n2` for everybody else; the machine's own files stay as they are.
"""

import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nursery
import pytest

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
SchedulerParameters=sched_interval=1
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.2 Port={ports[2]} CPUs=2 RealMemory=1000
PartitionName=test Nodes=n1,n2 Default=YES State=UP MaxTime=INFINITE
"""
NAMESPACES = ("unshare", "--mount", "--uts")
HOSTS = "127.0.0.1 localhost\n127.0.0.1 n1\n127.0.0.2 n2\n"
# Time limits are looked at twice a minute; a requeued job waits for as long as a credential holds (AuthInfo); and others may keep
# the machine busy.
WAIT_SECONDS = 900


@dataclasses.dataclass(frozen=True)
class Slurm:
    """`environment` makes Slurm's programs talk to this cluster; jobs that inherit it find the lt tools, of which lt-train starts
    copies as ranks (tests/train/nursery.py). In jobs with `plain_path` as PATH, lt-train is as it is installed.
    """

    folder: Path
    environment: dict[str, str]
    plain_path: str

    def attempt(self, *arguments: str, cwd: Path | None = None, stdin: str | None = None) -> tuple[int, str, str]:
        """Exit code, output, errors."""
        done = subprocess.run(arguments, env=self.environment, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    def run(self, *arguments: str, cwd: Path | None = None, stdin: str | None = None) -> str:
        code, output, errors = self.attempt(*arguments, cwd=cwd, stdin=stdin)
        assert code == 0, errors
        return output.strip()

    def submit(self, folder: Path, script: str, *options: str) -> str:
        """Submit a batch script that runs in `folder`; the job's number."""
        (folder / "job.sh").write_text(f"#!/bin/bash\n{script}\n")
        return self.run("sbatch", "--parsable", *options, "job.sh", cwd=folder)

    def wait(self, job: str, *states: str) -> None:
        """Until a job is in one of the states."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if self.run("squeue", "-h", "-t", "all", "-o", "%T", "-j", job) in states:
                return
            time.sleep(0.5)
        raise AssertionError(self.run("scontrol", "show", "job", job))

    def finish(self, job: str, log: Path, code: int = 0) -> str:
        """Wait for a job's end with this exit code; its log."""
        self.wait(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        shown = self.run("scontrol", "show", "job", job)
        assert f"ExitCode={code}:0" in shown, f"{shown}\n{log.read_text()}"
        return log.read_text()

    def read_until(self, log: Path, pattern: str) -> None:
        """Wait until a log has a line with the pattern."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if log.exists() and re.search(pattern, log.read_text()):
                return
            time.sleep(0.1)
        raise AssertionError(f"no {pattern} in {log}:\n{log.read_text() if log.exists() else ''}")

    def ranks(self, job: str) -> dict[str, int]:
        """The processes of a job's ranks, by number."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                variables = (process / "environ").read_text(errors="replace").split("\0")
            except OSError:
                continue
            if b"lt_train.launch.worker" in command and f"SLURM_JOB_ID={job}" in variables:
                # Spare processes have no number.
                found |= {variable[5:]: int(process.name) for variable in variables if variable.startswith("RANK=")}
        return found


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    _need("slurmctld", "slurmd", "munged")
    # Sockets have short paths only, and pytest's folders may be deep.
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    configuration = folder / "slurm.conf"
    host = socket.gethostname().split(".")[0]
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, ports=_free_ports(3)))
    (folder / "hosts").write_text(HOSTS)
    (folder / "disk").mkdir()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("LT_", "SLURM_"))}
    path = f"{nursery.programs_with_copied_ranks()}:{_path()}"
    cluster = Slurm(folder, variables | {"SLURM_CONF": str(configuration), "PATH": path}, _path())
    munge = _start_munge()
    daemons = [["slurmctld", "-D", "-f", str(configuration)]]
    cores = sorted(os.sched_getaffinity(0))
    for node, core in (("n1", cores[0]), ("n2", cores[-1])):
        slurmd = f"exec taskset -c {core} slurmd -D -f {configuration} -N {node}"
        (folder / f"disk.{node}").mkdir()
        own_disk = f"mount --bind {folder}/disk.{node} {folder}/disk"
        script = f"mount --bind {folder}/hosts /etc/hosts; {own_disk}; hostname {node}; {slurmd}"
        daemons.append([*NAMESPACES, "sh", "-ec", script])
    processes = [
        subprocess.Popen(arguments, env=cluster.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for arguments in daemons
    ]
    try:
        for _ in range(3000):
            if cluster.run("sinfo", "-h", "-o", "%T %D") == "idle 2":
                break
            time.sleep(0.1)
        else:
            raise AssertionError((folder / "slurmctld.log").read_text()[-2000:])
        yield cluster
        cluster.run("scancel", "--user", "root")
        for _ in range(1200):
            if not cluster.run("squeue", "-h", "-t", "RUNNING,COMPLETING"):
                break
            time.sleep(0.1)
    finally:
        for process in reversed(processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if munge is not None:
            munge.terminate()
            munge.wait(10)


@pytest.fixture
def cron(tmp_path: Path) -> Callable[[str, list[Path]], None]:
    """Runs a cron with a crontab until there are these files. Minute 1 of its clock is 3 s away; its jobs see real time.

    A crontab with `1 * * * *` runs once: a second run, on a busy machine, would write over what the first one has written.

    In a mount namespace of its own: it sees no other crontab and nobody sees this one.
    """
    _need("cron", "faketime")

    def run(lines: str, files: list[Path]) -> None:
        (tmp_path / "crontabs").mkdir()
        crontab = tmp_path / "crontabs" / "root"
        crontab.write_text(lines)
        crontab.chmod(0o600)
        (tmp_path / "nothing").mkdir()
        # Slurm's programs need munge's socket.
        (tmp_path / "munge").mkdir()
        script = f"""
mount --bind {tmp_path}/crontabs /var/spool/cron/crontabs
mount --bind {tmp_path}/nothing /etc/cron.d
mount --bind /dev/null /etc/crontab
mkdir -p /run/munge
mount --bind /run/munge {tmp_path}/munge
mount -t tmpfs tmpfs /run
mkdir /run/munge
mount --bind {tmp_path}/munge /run/munge
exec faketime -f '@2026-01-01 00:00:57' /usr/sbin/cron -f"""
        # faketime leaves cron to itself when it is ended: a signal goes to both.
        with subprocess.Popen(["unshare", "--mount", "sh", "-ec", script], start_new_session=True) as process:
            try:
                for _ in range(6000):
                    if all(file.exists() for file in files):
                        break
                    assert process.poll() is None
                    time.sleep(0.1)
            finally:
                os.killpg(process.pid, signal.SIGTERM)

    return run


def _need(*programs: str) -> None:
    """Skip the test where these or the right to use them cannot be had."""
    missing = [program for program in programs if shutil.which(program, path=_path()) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and {', '.join(programs)}; missing: {', '.join(missing) or 'root'}")
    if subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode:
        pytest.skip(f"needs namespaces: {' '.join(NAMESPACES)} is not permitted here")


def _path() -> str:
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _start_munge() -> subprocess.Popen[bytes] | None:
    """munged, unless it runs already: the package starts it where there is an init system."""
    if subprocess.run(["munge", "-n"], capture_output=True).returncode == 0:
        return None
    Path("/run/munge").mkdir(exist_ok=True)
    shutil.chown("/run/munge", "munge", "munge")
    process = subprocess.Popen(["munged", "-F"], user="munge", group="munge", extra_groups=[], env={"PATH": _path()})
    for _ in range(1200):
        if subprocess.run(["munge", "-n"], capture_output=True).returncode == 0:
            return process
        time.sleep(0.1)
    raise AssertionError("munged does not answer")
