"""lt-train preflight on both nodes of a real Slurm."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

# The second node's clock is wrong, and so is a variable of its environment.
WRONG = 'if [ "$(hostname)" = n2 ]; then export NCCL_SOCKET_IFNAME=none0; exec faketime -f +90s "$@"; fi; exec "$@"'


@pytest.mark.parametrize("tasks", [1, 2])
def test_one_report_names_the_nodes(slurm: Any, tmp_path: Path, tasks: int) -> None:
    arguments = ("lt-train", "preflight", "--json", "--model", "tiny", "--mock-data", "--image", "/nowhere/lt.sqsh")
    srun = ("srun", "--nodes=2", f"--ntasks-per-node={tasks}", "--overcommit", "bash", "-c", WRONG, "task")
    code, out, said = slurm.attempt(*srun, *arguments, "--save", str(tmp_path / "run"), cwd=tmp_path)
    assert code == 78, said
    record = json.loads(out)
    assert record["nodes"] == ["n1", "n2"]
    found = {finding["what"]: finding["nodes"] for finding in record["findings"]}
    assert found.pop("does not exist") == ["n1", "n2"]
    names = ", ".join(name for _, name in socket.if_nameindex())
    assert found.pop(f"none0 leaves none of this machine's interfaces: {names}") == ["n2"]
    (clock,) = [what for what in found if what.endswith("s ahead of n1's")]
    assert found[clock] == ["n2"]
    assert 85 < float(clock.split()[0]) < 91


def test_the_network_between_nodes(slurm: Any, tmp_path: Path) -> None:
    arguments = ("--network", "--model", "tiny", "--mock-data", "--save", str(tmp_path / "run"))
    code, out, said = slurm.attempt("srun", "--nodes=2", "--ntasks-per-node=1", "lt-train", "preflight", *arguments, cwd=tmp_path)
    assert code == 0, out + said
    assert "network: all-reduce among 2 ranks at" in said
    assert "checks on 2 nodes" in said
