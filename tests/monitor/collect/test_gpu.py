"""nvidia-smi's answers, of drivers old and new, healthy and not."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.collect import gpu
from lt_monitor.events import records

HEADER = (
    "index, uuid, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu, power.draw [W],"
    " clocks.current.sm [MHz], clocks_event_reasons.active, ecc.errors.uncorrected.volatile.total\n"
)
ROW = "0, GPU-a1b2, NVIDIA H100 80GB HBM3, 97, 71234, 81559, 61, 688.42, 1755, 0x0000000000000004, 0\n"


def fake(folder: Path, name: str, script: str) -> str:
    """A program `name` on a PATH of its own; returns that PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_a_gpu() -> None:
    (found,) = gpu.parse(HEADER + ROW, "saved.csv")
    assert records.problem(found) is None
    chosen = {key: value for key, value in found.items() if key not in ("v", "time", "run", "node")}
    assert chosen == {
        "kind": "gpu",
        "gpu": 0,
        "uuid": "GPU-a1b2",
        "name": "NVIDIA H100 80GB HBM3",
        "utilization": 0.97,
        "memory_bytes": 71234 * 2**20,
        "memory_total_bytes": 81559 * 2**20,
        "temperature_celsius": 61,
        "power_watts": 688.42,
        "sm_clock_hertz": 1755000000,
        "ecc_uncorrected_errors": 0,
        "clock_limits": ["sw_power_cap"],
        "src": {"file": "saved.csv", "offset": len(HEADER)},
    }


def test_an_answer_without_a_header_has_the_columns_of_the_query() -> None:
    with_header = gpu.parse(HEADER + ROW, "saved.csv")[0]
    (found,) = gpu.parse(ROW, "saved.csv")
    assert {**found, "time": 0, "src": 0} == {**with_header, "time": 0, "src": 0}


def test_lines_that_are_no_gpu_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    for text in (ROW + "0, GPU-a1b2, 97\n", HEADER + ROW + "0, GPU-a1b2, 97\n"):
        found = gpu.parse(text, "saved.csv")
        assert [record["kind"] for record in found] == ["gpu", "note"]
        assert found[1]["message"] == "saved.csv: 1 lines are not rows of a GPU, the first: 0, GPU-a1b2, 97"
        assert found[1]["message"] in capfd.readouterr().err
    (note,) = gpu.parse("0, 97, 71234\n1, 95, 71234\n", "saved.csv")
    assert "without a header --query-gpu=index,uuid,name," in note["message"]


def test_units_in_the_cells_and_fields_that_are_not_available() -> None:
    header = "index, name, clocks.sm [MHz], power.draw [W], ecc.errors.uncorrected.volatile.total\n"
    (found,) = gpu.parse(header + "0, NVIDIA A10G, 1710 MHz, [N/A], [N/A]\n", "-")
    assert found["sm_clock_hertz"] == 1710000000
    assert "power_watts" not in found
    assert "ecc_uncorrected_errors" not in found


@pytest.mark.parametrize(
    "line",
    [
        "3, GPU-x, NVIDIA H100, [GPU is lost], [GPU is lost], 81559, [GPU is lost], [GPU is lost], 0, 0x0, 0\n",
        "Unable to determine the device handle for GPU0000:B8:00.0: GPU is lost.  Reboot the system to recover this GPU\n",
        "Unable to determine the device handle for gpu 0000:1C:00.0: Unknown Error\n",
    ],
)
def test_a_lost_gpu_is_a_fault(line: str) -> None:
    found = gpu.parse(HEADER + ROW + line, "-")
    assert [record["kind"] for record in found] == ["gpu", "fault"]
    assert (found[1]["fault"], found[1]["severity"], found[1]["cause"]) == ("gpu-lost", "critical", "root")
    assert records.problem(found[1]) is None
    assert found[1].get("gpu") == (3 if line.startswith("3") else None)


def test_this_machine_is_asked(tool: Any, tmp_path: Path) -> None:
    path = fake(tmp_path / "bin", "nvidia-smi", f"cat <<'END'\n{HEADER}{ROW}END")
    done = tool("gpu", PATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["gpu"] == 0


def test_an_old_driver_is_asked_by_the_old_name(tool: Any, tmp_path: Path) -> None:
    script = """case "$1" in
*clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;;
*ecc*) echo 'Field "ecc.errors.uncorrected.volatile.total" is not a valid field to query.'; exit 2;;
*) echo 'index, name, clocks_throttle_reasons.active'; echo '0, Tesla V100, 0x0000000000000048';;
esac"""
    done = tool("gpu", PATH=fake(tmp_path / "bin", "nvidia-smi", script))
    assert json.loads(done.stdout)["clock_limits"] == ["hw_slowdown", "hw_thermal_slowdown"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9', "has failed because"),
        ("echo no such thing", "not the output of nvidia-smi"),
        (f"cat <<'END'\n{HEADER}END", "no GPU in it"),
    ],
)
def test_what_is_wrong_is_said_and_not_fatal(tool: Any, tmp_path: Path, script: str, said: str) -> None:
    done = tool("gpu", PATH=fake(tmp_path / "bin", "nvidia-smi", script))
    record = json.loads(done.stdout)
    assert (done.returncode, record["kind"], record["note"]) == (0, "note", "missing")
    assert said in record["message"]
    assert said in done.stderr


def test_no_nvidia_smi(tool: Any, tmp_path: Path) -> None:
    done = tool("gpu", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "lt-monitor: nvidia-smi: not installed here\n")


def test_a_lost_gpu_can_make_the_whole_answer_fail(tool: Any, tmp_path: Path) -> None:
    script = "echo 'Unable to determine the device handle for GPU0000:B8:00.0: GPU is lost.'; exit 15"
    record = json.loads(tool("gpu", PATH=fake(tmp_path / "bin", "nvidia-smi", script)).stdout)
    assert (record["kind"], record["fault"]) == ("fault", "gpu-lost")


def test_a_sample_goes_into_alert(tool: Any) -> None:
    bad = ROW.replace("0x0000000000000004, 0", "0x0000000000000040, 3")
    sampled = tool("gpu", "-", stdin=HEADER + bad).stdout
    done = tool("alert", "-", stdin=sampled)
    assert done.returncode == 3
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["CRITICAL", "gpu-errors"], ["WARNING", "gpu-slowdown"]]


def test_a_missing_file(tool: Any) -> None:
    assert tool("gpu", "gone.csv").returncode == 66


@given(st.text(alphabet=st.sampled_from(list("index, uuid,[%]0123456789xGPU lost\n")), max_size=200))
def test_any_text_gives_valid_records(text: str) -> None:
    for record in gpu.parse(HEADER + text, "-"):
        assert records.problem(record) is None
