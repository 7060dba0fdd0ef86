import stat
from pathlib import Path

import pytest
from situations import said, situation, write

from lt_train.preflight import network_checks

PRODUCT = "/sys/devices/virtual/dmi/id/product_name"


def test_deprecated_variables(tmp_path: Path) -> None:
    variables = {"NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_DEBUG": "INFO", "TORCH_NCCL_AVOID_RECORD_STREAMS": "1"}
    found = said(network_checks.deprecated_variables, situation(tmp_path, **variables))
    assert found == [
        "warning: NCCL_ASYNC_ERROR_HANDLING: the name is deprecated; set TORCH_NCCL_ASYNC_ERROR_HANDLING instead",
        "warning: TORCH_NCCL_AVOID_RECORD_STREAMS: torch does so in any case; unset it",
    ]


@pytest.mark.parametrize(
    ("value", "is_right"),
    [("lo", True), ("l", True), ("=l", False), ("^lo", False), ("^docker,veth", True), ("efa0", False), ("^=l", True)],
)
def test_interfaces(value: str, is_right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo")])
    found = said(network_checks.interfaces, situation(tmp_path, NCCL_SOCKET_IFNAME=value))
    assert not found if is_right else found[0].startswith("error: NCCL_SOCKET_IFNAME: ")


def fi_info(tmp_path: Path, text: str, code: int = 0) -> str:
    """A PATH with a program of that name."""
    program = tmp_path / "bin/fi_info"
    write(tmp_path, "/bin/fi_info", f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return str(program.parent)


def test_efa_devices(tmp_path: Path) -> None:
    write(tmp_path, PRODUCT, "p4d.24xlarge\n")
    for number in range(4):
        (tmp_path / f"sys/class/infiniband/rdmap{number}").mkdir(parents=True)
    path = fi_info(tmp_path, "provider: efa")
    assert not said(network_checks.efa_devices, situation(tmp_path, PATH=path))
    (tmp_path / "sys/class/infiniband/rdmap0").rmdir()
    assert "3 EFA device(s), p4d.24xlarge has 4" in said(network_checks.efa_devices, situation(tmp_path, PATH=path))[0]
    (tmp_path / "sys/class/infiniband/rdmap0").mkdir()
    path = fi_info(tmp_path, "fi_getinfo: -61 (No data available)", 61)
    assert "sees no EFA" in said(network_checks.efa_devices, situation(tmp_path, PATH=path))[0]
    assert "not installed" in said(network_checks.efa_devices, situation(tmp_path, PATH="/nowhere"))[0]
    assert said(network_checks.efa_devices, situation(tmp_path, INSTANCE_TYPE="m5.large"))[0].startswith("not checked")


def test_efa_is_used(tmp_path: Path) -> None:
    types = {"INSTANCE_TYPE": "ml.p5.48xlarge"}
    found = said(network_checks.efa_used, situation(tmp_path, nodes=2, FI_PROVIDER="tcp", **types))
    assert "configured to use tcp" in found[0]
    assert "NCCL would use TCP" in found[1]
    write(tmp_path, "/opt/aws-ofi-nccl/lib/libnccl-net.so")
    assert not said(network_checks.efa_used, situation(tmp_path, nodes=2, FI_PROVIDER="efa", **types))
    assert said(network_checks.efa_used, situation(tmp_path, **types)) == ["not checked: no EFA, or one node"]


def test_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for count, messages in ((7, 1), (8, 0)):
        monkeypatch.setattr("lt_train.process.device.gpu_count", lambda count=count: count)
        assert len(said(network_checks.gpus, situation(tmp_path, INSTANCE_TYPE="p5.48xlarge"))) == messages
