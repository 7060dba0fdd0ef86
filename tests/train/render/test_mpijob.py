"""MPIJobs: the machines of Trainium, and the order of compiling and training, with stand-ins for mpirun and ssh."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from rendering import Cluster, manifests, remarks, render

from lt_shared.console import UsageError

BASE = ("--image", "registry/lt:1", "--model", "llama2-7b", "--bf16", "--mock-data")


def mpijobs(mount: Path | str, *arguments: str) -> list[dict[str, Any]]:
    return manifests("mpijob", *BASE, "--mount", str(mount), "--save", f"{mount}/run", "--nodes", "4", *arguments)


def launcher(document: dict[str, Any], place: Path) -> str:
    """The launcher's script, with the operator's list of hosts in `place`."""
    script = document["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"][2]
    return str(script).replace("/etc/mpi/hostfile", f"{place}/hostfile")


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path)
    (tmp_path / "hostfile").write_text("w-0.w slots=1\nw-1.w slots=1\n")
    (tmp_path / "neuron_cache").mkdir()
    cluster.add("ssh", "")
    cluster.add("sleep", "exec /bin/sleep 0.1")
    cluster.add("mpirun", f'echo "$MASTER_ADDR" > {tmp_path}/master')
    return cluster


@pytest.mark.parametrize(
    ("instance", "devices", "efa"), [("trn1.32xlarge", 16, 8), ("trn1n.32xlarge", 16, 16), ("trn2.48xlarge", 16, 16)]
)
def test_the_machines(instance: str, devices: int, efa: int) -> None:
    documents = mpijobs("/shared", "--instance-type", instance, "--job-name", "llama")
    assert [document["metadata"]["name"] for document in documents] == ["llama-compile", "llama"]
    for document in documents:
        worker = document["spec"]["mpiReplicaSpecs"]["Worker"]
        assert worker["replicas"] == 4
        limits = worker["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert limits == {"aws.amazon.com/neuron": devices, "vpc.amazonaws.com/efa": efa}
        assert "resources" not in document["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]


def test_training_waits_for_the_compiler(cluster: Cluster, tmp_path: Path) -> None:
    compiling, training = (launcher(document, tmp_path) for document in mpijobs(tmp_path))
    (tmp_path / "calls").write_text("")
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    shells = [subprocess.Popen(["bash", "-c", script], env=environment) for script in (training, compiling)]
    assert [shell.wait(timeout=30) for shell in shells] == [0, 0]
    first, second = (call for call in cluster.calls if call.startswith("mpirun"))
    assert "-np 4 " in first
    assert "neuron_parallel_compile lt-train" in first
    assert first.endswith(f"--save {tmp_path}/run-compile --device neuron --train-iters 4 --eval-iters 0")
    assert "-x NEURON_COMPILE_CACHE_URL lt-train" in second
    assert second.endswith(f"--save {tmp_path}/run --device neuron")
    assert (tmp_path / "master").read_text() == "w-0.w\n"


def test_a_failed_compiler_leaves_no_mark(cluster: Cluster, tmp_path: Path) -> None:
    cluster.add("mpirun", "exit 1")
    assert cluster.run(launcher(mpijobs(tmp_path)[0], tmp_path)).returncode == 1
    assert list((tmp_path / "neuron_cache").iterdir()) == []


@pytest.mark.parametrize(("codes", "status", "runs"), [("75 75 0", 0, 3), ("75 78", 78, 2), ("1", 1, 1)])
def test_training_goes_on_after_75_alone(cluster: Cluster, tmp_path: Path, codes: str, status: int, runs: int) -> None:
    (tmp_path / "codes").write_text("\n".join(codes.split()) + "\n")
    cluster.add("mpirun", f"code=$(head -n 1 {tmp_path}/codes); sed -i 1d {tmp_path}/codes; exit $code")
    (document,) = mpijobs(tmp_path, "--instance-type", "p5.48xlarge", "--use-distributed-optimizer")
    assert cluster.run(launcher(document, tmp_path)).returncode == status
    assert sum(call.startswith("mpirun") for call in cluster.calls) == runs


def test_gpus_have_nothing_to_compile() -> None:
    (document,) = mpijobs("/shared", "--instance-type", "p5.48xlarge", "--use-distributed-optimizer")
    assert "neuron" not in str(document)


def test_trainium_is_said_to_be_missing() -> None:
    assert "no device for Trainium yet" in remarks("mpijob", *BASE, "--save", "/shared/run")


def test_what_cannot_work() -> None:
    with pytest.raises(UsageError, match="stages"):
        render("mpijob", *BASE, "--save", "/shared/run", "--convert", "--to hf -o /shared/hf")
    with pytest.raises(UsageError, match="not on the volume"):
        render("mpijob", *BASE, "--save", "/elsewhere/run")
