"""Reports of neuron-monitor."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.collect import neuron
from lt_monitor.events import records

MEMORY = {"constants": 100, "model_code": 20, "model_shared_scratchpad": 3, "runtime_memory": 0, "tensors": 4000}
REPORT: dict[str, Any] = {
    "neuron_runtime_data": [
        {
            "pid": 4711,
            "address": "",
            "neuron_runtime_tag": "4711",
            "error": "",
            "report": {
                "execution_stats": {
                    "period": 5.0,
                    "error_summary": {"generic": 0, "numerical": 2, "transient": 0, "model": 0, "runtime": 0, "hardware": 1},
                    "execution_summary": {"completed": 123},
                    "latency_stats": {
                        "total_latency": {"p0": 0.01, "p50": 0.011, "p99": 0.02, "p100": 0.03},
                        "device_latency": None,
                    },
                    "error": "",
                },
                "memory_used": {
                    "period": 5.0,
                    "neuron_runtime_used_bytes": {
                        "host": 610705408,
                        "neuron_device": 102298328,
                        "usage_breakdown": {"host": {}, "neuroncore_memory_usage": {"0": MEMORY, "1": MEMORY}},
                    },
                    "error": "",
                },
                "neuroncore_counters": {
                    "period": 5.0,
                    "neuroncores_in_use": {
                        "0": {"neuroncore_utilization": 99.38, "effective_flops": 34776185139834},
                        "1": {"neuroncore_utilization": 0},
                    },
                    "error": "",
                },
            },
        }
    ],
    "system_data": {
        "neuron_hw_counters": {
            "period": 5.0,
            "neuron_devices": [
                {
                    "neuron_device_index": 0,
                    "mem_ecc_corrected": 5,
                    "mem_ecc_uncorrected": 1,
                    "sram_ecc_uncorrected": 2,
                    "sram_ecc_corrected": 0,
                }
            ],
            "error": "",
        }
    },
    "neuron_hardware_info": {"neuron_device_count": 16, "neuroncore_per_device_count": 2, "error": ""},
}


def details(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in ("v", "kind", "time", "run", "node", "src")}


def test_a_report() -> None:
    found = neuron.parse(json.dumps(REPORT) + "\n", "-")
    assert all(records.problem(record) is None for record in found)
    assert [details(record) for record in found] == [
        {"core": 0, "pid": 4711, "utilization": 0.9938, "flops_per_second": 34776185139834, "memory_bytes": 4123},
        {"core": 1, "pid": 4711, "utilization": 0.0, "memory_bytes": 4123},
        {
            "pid": 4711,
            "device_memory_bytes": 102298328,
            "host_memory_bytes": 610705408,
            "errors": {"numerical": 2, "hardware": 1},
            "latency_p50_seconds": 0.011,
            "latency_p99_seconds": 0.02,
        },
        {"device": 0, "ecc_uncorrected_errors": 3, "ecc_corrected_errors": 5},
    ]


def test_errors_go_into_alert(tool: Any) -> None:
    sampled = tool("neuron", "-", stdin=json.dumps(REPORT)).stdout
    done = tool("alert", "-", stdin=sampled)
    assert done.returncode == 3
    assert len([line for line in done.stdout.splitlines() if line.startswith("CRITICAL neuron-errors")]) == 3


def test_a_driver_that_is_not_loaded_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    report = {"neuron_runtime_data": [], "system_data": {}, "neuron_hardware_info": {"error": "driver not loaded"}}
    found = neuron.parse(json.dumps(report), "-")
    assert [record["note"] for record in found] == ["missing"]
    assert "driver not loaded" in capsys.readouterr().err


def test_the_first_report_of_this_machine(tool: Any, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "neuron-monitor"
    program.write_text(f"#!/bin/sh\nwhile :; do cat <<'END'\n{json.dumps(REPORT)}\nEND\nsleep 600; done\n")
    program.chmod(0o755)
    begin = time.monotonic()
    done = tool("neuron", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert time.monotonic() - begin < 300
    assert len(done.stdout.splitlines()) == 4


@pytest.mark.parametrize(
    ("script", "said"), [("exit 1", "ended without output"), ("echo hello", "not reports of neuron-monitor")]
)
def test_a_neuron_monitor_that_says_nothing(tool: Any, tmp_path: Path, script: str, said: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "neuron-monitor").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / "neuron-monitor").chmod(0o755)
    done = tool("neuron", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert done.returncode == 0
    assert said in done.stderr


def test_no_neuron_monitor(tool: Any, tmp_path: Path) -> None:
    done = tool("neuron", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "lt-monitor: neuron-monitor: not installed here\n")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


@given(st.sampled_from(["neuron_runtime_data", "report", "neuroncores_in_use", "neuron_devices", "0", "error_summary"]), JSON)
def test_any_shape_of_a_report_gives_valid_records(place: str, value: Any) -> None:
    def replaced(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: value if key == place else replaced(each) for key, each in node.items()}
        return [replaced(each) for each in node] if isinstance(node, list) else node

    for record in neuron.parse(json.dumps(replaced(REPORT)), "-"):
        assert records.problem(json.loads(json.dumps(record))) is None
