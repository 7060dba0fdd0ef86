"""Dumps that mean harm: whoever can write into a run's directory can leave one there."""

import copy
import json
import os
import pickle
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_dumps import tensor_and_data_parallel

from lt_monitor.hangs import dump_files, flight_recorder, report
from lt_shared.console import BadData, ToolError

SAMPLES = Path(__file__).parents[1] / "samples" / "flight"
NUMBERS = st.integers(-5, 5) | st.integers() | st.floats() | st.booleans() | st.sampled_from([1 << 62, -1, 1 << 63, 10**400])
TEXTS = st.text(max_size=8) | st.sampled_from(
    ["nccl:all_reduce", "nccl:send 0->9", "nccl:recv 0<-1", "gloo:", "nccl:coalesced", "[0, 1, 7]"]
)
VALUES = st.recursive(
    st.none() | NUMBERS | TEXTS | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=8,
)


def say(job: Any) -> report.Report:
    """All that is printed of a job, which no dump may break."""
    made = report.report(job)
    for line in made.lines():
        assert line.isprintable() and len(line) < 20_000
    json.dumps(made.to_record(), allow_nan=False)
    return made


def read(*paths: Path) -> report.Report | None:
    try:
        return say(dump_files.read([str(path) for path in paths]))
    except ToolError as error:
        assert str(error)
        return None


@st.composite
def an_edited_dump(draw: st.DrawFn, dump: dict[str, Any]) -> Any:
    """A dump in which some values are others, or gone."""
    edited = copy.deepcopy(dump)
    for _ in range(draw(st.integers(1, 4))):
        holder: Any = edited
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(holder[key], dict | list) and holder[key] and draw(st.booleans()):
                holder = holder[key]
                continue
            if draw(st.booleans()):
                holder[key] = draw(VALUES)
            else:
                del holder[key]
            break
    return edited


HEALTHY = tensor_and_data_parallel(2, 1, 2).play()


@settings(max_examples=30, deadline=None)
@given(an_edited_dump(HEALTHY[0]), an_edited_dump(HEALTHY[1]))
def test_no_edit_of_a_dump_breaks_the_report(tmp_path_factory: pytest.TempPathFactory, one: Any, other: Any) -> None:
    directory = tmp_path_factory.mktemp("dumps")
    paths = [directory / "rank_0", directory / "rank_1"]
    for path, dump in zip(paths, (one, other), strict=True):
        path.write_bytes(pickle.dumps(dump))
    read(*paths)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_change_of_bytes_breaks_the_report(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    source = data.draw(st.sampled_from([SAMPLES / "nccl_p2p" / "nccl_trace_rank_0", *sorted(SAMPLES.glob("pyspy*")),
                                        SAMPLES / "gloo_late_json" / "rank_3.json"]))  # fmt: skip
    content = bytearray(source.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.mktemp("dumps") / "rank_0"
    path.write_bytes(content)
    read(path)


@pytest.mark.parametrize("called", [os.system, eval, subprocess.Popen, getattr])
def test_a_pickle_that_runs_something_is_refused(tmp_path: Path, called: Any) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
            return called, (f"touch {tmp_path}/harm",)

    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.10", "entries": [], "pg_config": Harm()}))
    with pytest.raises(BadData, match="it refers to"):
        dump_files.read([str(path)])
    assert not (tmp_path / "harm").exists()


def test_as_many_times_as_a_dump_has(tmp_path: Path) -> None:
    """Times in nanoseconds are numbers of 8 bytes; a checkpoint may have a thousand such, and a dump has two thousand calls."""
    dump = copy.deepcopy(HEALTHY[0])
    first = dump["entries"][0]
    dump["entries"] = [
        first | {"record_id": at, "collective_seq_id": at, "time_created_ns": 1 << 60 | at} for at in range(20_000)
    ]
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump, protocol=2))
    assert len(dump_files.read([str(path)]).flights[0].calls) == 20_000


@pytest.mark.parametrize("number", [1 << 64, 10**400])
def test_numbers_of_more_than_eight_bytes_are_refused(tmp_path: Path, number: int) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"entries": [], "pg_config": {number: 1}}, protocol=2))
    with pytest.raises(BadData, match="numbers as large"):
        dump_files.read([str(path)])


def test_values_that_hold_themselves(tmp_path: Path) -> None:
    dump: dict[str, Any] = copy.deepcopy(HEALTHY[0])
    frames: list[Any] = []
    frames.append(frames)
    dump["entries"][0]["frames"] = frames
    dump["entries"].append(dump["entries"])
    dump["pg_config"]["0"]["ranks"] = dump["pg_config"]
    dump["entries"][1]["process_group"] = (frames, dump)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump))
    made = read(path)
    assert made is not None and made.job.flights[0].malformed == 1


def within(path: Path, seconds: float, size_bytes: int) -> subprocess.CompletedProcess[str]:
    """The command, with no more memory than that."""
    began = time.monotonic()
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (size_bytes, size_bytes))  # noqa: E731
    command = [sys.executable, "-m", "lt_monitor", "stuck", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=60 + seconds)
    assert time.monotonic() - began < 10 * seconds
    return done


FEW_BYTES = {
    "deep lists": b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "empty dicts": b"\x80\x02(" + b"}" * 30_000_000 + b"l.",
    "a text longer than the file": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "a memo of a billion": b"\x80\x02}r\xff\xff\xff\x3f.",
    "cut off": b"\x80\x02}(X\x07\x00\x00\x00entries",
    "deep JSON": b"[" * 5_000_000,
    "more than fits": b"\x80\x02" + b"N" * (33 << 20),
}


@pytest.mark.parametrize("name", FEW_BYTES)
def test_few_bytes_take_little_memory_and_time(tmp_path: Path, name: str) -> None:
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(FEW_BYTES[name])
    done = within(path, seconds=3, size_bytes=1 << 30)
    assert done.returncode == 65, done.stderr
    assert "Traceback" not in done.stderr


def test_entries_and_groups_that_are_one_many_times(tmp_path: Path) -> None:
    frames = [{"filename": f"/x/{number}.py", "line": number, "name": "f"} for number in range(5000)]
    ranks = str(list(range(100_000)))
    entry = HEALTHY[0]["entries"][0] | {"frames": frames, "input_sizes": [[1] * 5000] * 5000}
    dump = {
        "version": "2.10",
        "entries": [entry] * 250_000,
        "pg_config": {str(name): {"name": str(name), "desc": "d", "ranks": ranks} for name in range(5000)},
    }
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump))
    done = within(path, seconds=12, size_bytes=2 << 30)
    assert done.returncode in (0, 1), done.stderr[-500:]


def test_a_job_of_a_hundred_thousand_ranks(tmp_path: Path) -> None:
    dump = copy.deepcopy(HEALTHY[0])
    dump["entries"][-1]["state"] = "scheduled"
    for group in dump["pg_config"].values():
        group["ranks"] = str(list(range(flight_recorder.MAX_RANKS)))
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(dump))
    made = read(path)
    assert made is not None and made.lines()[0] == "suspect: ranks 1-131071"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank_0")
    assert read(tmp_path) is None
    assert read(tmp_path / "rank_0") is None
