"""`lt-monitor stuck` on dumps of NCCL (torch 2.11, two H100), of gloo (torch 2.13, four processes) and of jobs made here.

In samples/flight/nccl_*, rank 1 does something else than rank 0 after four steps of an all_reduce in each of two groups: `late`
sleeps in next_batch, `type` broadcasts first, `size` and `dtype` reduce another tensor, `order` swaps the groups; in `p2p` both
ranks receive and nobody sends. In gloo_late, rank 3 sleeps while the others reduce.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_dumps import BEGAN_NS, Job, Step, changed, tensor_and_data_parallel, write

SAMPLES = Path(__file__).parents[1] / "samples" / "flight"
Tool = Callable[..., Any]


def lines(tool: Tool, *paths: object) -> list[str]:
    return str(tool("stuck", *map(str, paths)).stdout).splitlines()


def report_of(tool: Tool, *paths: object) -> dict[str, Any]:
    result = tool("stuck", "--json", *map(str, paths))
    record: dict[str, Any] = json.loads(result.stdout)
    assert result.returncode == int(record["stuck"]), result.stderr
    return record


def sample(name: str, tmp_path: Path, seconds: float = 600) -> Path:
    """A copy whose files were written that long after the first unfinished call."""
    copy = shutil.copytree(SAMPLES / name, tmp_path / name)
    since = min(
        entry["time_created_ns"]
        for path in copy.glob("nccl_trace*")
        for entry in pickle.loads(path.read_bytes())["entries"]
        if entry["state"] != "completed" and not entry["retired"]
    )
    for path in copy.iterdir():
        os.utime(path, ns=(since, since + int(seconds * 1e9)))
    return copy


def test_a_rank_that_does_not_come(tool: Tool, tmp_path: Path) -> None:
    assert lines(tool, sample("nccl_late", tmp_path)) == [
        "suspect: rank 1",
        "rank 1 is missing in all_reduce #5 of process group 0 (default_pg, ranks 0-1): 1 of 2 ranks waits for 10 min; "
        "the last collective of rank 1 there is #4 (completed)",
        "rank 0: tmp/w/train.py:11 reduce_gradients (waits in all_reduce #5)",
        "rank 1: tmp/w/train.py:11 reduce_gradients (its last call is all_reduce #4)",
    ]


def test_stacks_beside_the_dumps_say_where_it_is(tool: Tool, tmp_path: Path) -> None:
    """gloo names no ranks of groups and never sets a state; rank 1 is missing in the large group because it waits for rank 3."""
    text = lines(tool, sample("gloo_late", tmp_path, seconds=14))
    assert text[0] == "suspect: rank 3"
    assert text[1].startswith(
        "rank 3 is missing in all_reduce #4 of process group 2 (data_parallel, ranks 1,3): 1 of 2 ranks waits"
    )
    assert text[2].startswith(
        "  also ranks 1,3 are missing in all_reduce #4 of process group 0 (default_pg, ranks 0-3): 2 of 4 ranks"
    )
    assert text[3:] == [
        "ranks 0,2: train.py:24 <module> (py-spy: MainThread)",
        "rank 1: train.py:10 reduce_gradients (py-spy: MainThread)",
        "rank 3: train.py:12 next_batch (py-spy: MainThread)",
    ]


def test_json_dumps_say_the_same_without_frames(tool: Tool, tmp_path: Path) -> None:
    pickled, as_json = report_of(tool, sample("gloo_late", tmp_path)), report_of(tool, SAMPLES / "gloo_late_json")
    for record in pickled, as_json:
        for finding in record["findings"]:
            del finding["message"]
            finding.pop("seconds", None)
    assert pickled["findings"] == as_json["findings"]
    assert as_json["suspects"] == [3]
    assert as_json["standing"][3] == {"rank": 3, "source": "its last call is all_reduce #3", "frames": []}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            "type",
            "rank 0 calls all_reduce of 1024 Float; rank 1 calls broadcast of 1024 Float; rank 1 makes a call more than rank 0",
        ),
        ("size", "rank 0 calls all_reduce of 1024 Float; rank 1 calls all_reduce of 16777216 Float"),
        ("dtype", "rank 0 calls all_reduce of 1024 Float; rank 1 calls all_reduce of 1024 Half"),
    ],
)
def test_calls_that_differ(tool: Tool, case: str, said: str) -> None:
    first = lines(tool, SAMPLES / f"nccl_{case}")[0]
    assert first.startswith(f"mismatch in all_reduce #5 of process group 0 (default_pg, ranks 0-1): {said}")


def test_ranks_that_wait_for_each_other(tool: Tool) -> None:
    record = report_of(tool, SAMPLES / "nccl_order")
    assert [(finding["process_group"]["name"], finding["missing"], finding["circular"]) for finding in record["findings"]] == [
        ("0", [1], True),
        ("1", [0], True),
    ]
    assert record["suspects"] == []
    assert "these ranks wait for each other: they call collectives in different orders" in "\n".join(
        lines(tool, SAMPLES / "nccl_order")
    )


def test_messages_that_nobody_sends(tool: Tool) -> None:
    text = lines(tool, SAMPLES / "nccl_p2p")
    assert text[0].startswith(
        "rank 1 has not called the send for recv 0<-1 of process group 0 (default_pg, ranks 0-1): rank 0 waits"
    )
    assert text[1].startswith("rank 0 has not called the send for recv 1<-0")
    assert text[3] == "  also 1 collective that all ranks of the group have joined"


def test_a_missing_dump_is_the_first_suspect(tool: Tool) -> None:
    waiting = report_of(tool, SAMPLES / "nccl_late" / "nccl_trace_rank_0")
    assert (waiting["suspects"], waiting["findings"][0]["absent"], waiting["findings"][0]["waiting"]) == ([1], [1], [0])
    finished = report_of(tool, SAMPLES / "nccl_late" / "nccl_trace_rank_1")
    assert (finished["suspects"], finished["findings"][0]["message"]) == (
        [0],
        "no dump of rank 0: whether the run waits for it is unknown",
    )


def test_stacks_alone(tool: Tool, tmp_path: Path) -> None:
    for rank in range(4):
        source = SAMPLES / "gloo_late" / f"pyspy_rank_{3 if rank == 3 else 1}.txt"
        shutil.copy(source, tmp_path / f"pyspy_rank_{rank}.txt")
    assert lines(tool, tmp_path) == [
        "suspect: rank 3",
        "rank 3 is not where 3 of 4 ranks stand",
        "ranks 0-2: train.py:10 reduce_gradients (py-spy: MainThread)",
        "rank 3: train.py:12 next_batch (py-spy: MainThread)",
    ]
    alone = tool("stuck", str(tmp_path / "pyspy_rank_3.txt"))
    assert (alone.returncode, alone.stdout.splitlines()[0]) == (0, "no flight recorder dump: only where the ranks stand is known")


def test_nothing_is_stuck(tool: Tool, tmp_path: Path) -> None:
    job = tensor_and_data_parallel(2, 2, steps=3)
    result = tool("stuck", *write(job.play(), tmp_path))
    assert result.returncode == 0
    assert result.stdout.splitlines()[0] == "nothing is missing: every collective in the dumps is finished"


@pytest.mark.parametrize(("seconds", "code"), [(1, 0), (600, 1)])
def test_a_call_on_its_way_is_not_stuck(tool: Tool, tmp_path: Path, seconds: int, code: int) -> None:
    dumps = Job({"0": (0, 1)}, {0: [Step("0")], 1: [Step("0")]}).play()
    for dump in dumps.values():
        dump["entries"][0]["state"] = "started"
    for path in write(dumps, tmp_path):
        os.utime(path, ns=(0, BEGAN_NS + seconds * 10**9))
    result = tool("stuck", str(tmp_path))
    assert (result.returncode, result.stdout.splitlines()[0]) == (
        code,
        "no rank is missing in all_reduce #1 of process group 0 (group_0, ranks 0-1): "
        f"2 of 2 ranks wait for {'1 s' if seconds == 1 else '10 min'}",
    )


def test_a_rank_that_holds_up_all_its_groups(tool: Tool, tmp_path: Path) -> None:
    job = tensor_and_data_parallel(4, 4, steps=4)
    job.programs[6] = job.programs[6][:10]
    record = report_of(tool, *write(job.play(), tmp_path))
    assert record["suspects"] == [6]
    assert [finding["missing"] for finding in record["findings"]] == [[6], [2, 6, 10, 14]]


def test_a_call_that_all_have_joined_is_held_up_by_another(tool: Tool, tmp_path: Path) -> None:
    """GPUs work in the order of their streams: what was enqueued behind the call that waits is joined, and waits, too."""
    job = tensor_and_data_parallel(2, 2, steps=3)
    job.programs[3] = job.programs[3][:6]
    dumps = job.play()
    for dump in dumps.values():
        for entry in dump["entries"]:
            if entry["process_group"][0] in ("1", "2") and entry["collective_seq_id"] == 4:
                entry["state"] = "scheduled"
    result = tool("stuck", *write(dumps, tmp_path))
    assert result.stdout.splitlines()[0] == "suspect: rank 3"
    assert result.stdout.splitlines()[1].startswith("rank 3 is missing in all_reduce #2 of process group 4")
    assert "  also 2 collectives that all ranks of the group have joined" in result.stdout.splitlines()


def test_a_rank_whose_gpu_does_not_go_on(tool: Tool, tmp_path: Path) -> None:
    """As in tests/attribution/unit/fr_traces/gpu_error_1st of NVIDIA/nvidia-resiliency-ext, where ranks 12 and 14 stopped.

    Dumps have unfinished calls only. One rank has not finished what its partner has; others wait for the partner in vain.
    """
    job = tensor_and_data_parallel(2, 2, steps=4)
    job.programs[2] = job.programs[2][:-1]
    dumps = job.play()
    # What the GPU of each rank waits in: rank 3 in the all_gather that rank 2 has finished, the others in what comes of that.
    for rank, first in {3: 5, 2: 8, 0: 10, 1: 6}.items():
        dumps[rank]["entries"] = dumps[rank]["entries"][first:]
        for entry in dumps[rank]["entries"]:
            entry |= {"state": "scheduled", "retired": False, "time_discovered_completed_ns": None}
    record = report_of(tool, *write(dumps, tmp_path))
    assert record["suspects"] == [3]
    first = record["findings"][0]
    assert (first["finding"], first["waiting"], first["finished"], first["consequence"]) == ("behind", [3], [2], False)
    assert all(finding["consequence"] for finding in record["findings"][1:])
    text = "rank 3 is behind in _all_gather_base #4 of process group 2 (group_2, ranks 2-3), which rank 2 has finished"
    assert text in first["message"]


def test_a_broadcast_ends_where_it_began_before_all_have_it(tool: Tool, tmp_path: Path) -> None:
    job = Job({"0": (0, 1, 2)}, {rank: [Step("0", "broadcast")] * 3 for rank in range(3)})
    dumps = job.play()
    for rank, first in {0: 2, 1: 1, 2: 1}.items():
        dumps[rank]["entries"] = dumps[rank]["entries"][first:]
        for entry in dumps[rank]["entries"]:
            entry |= {"state": "scheduled", "retired": False}
    record = report_of(tool, *write(dumps, tmp_path))
    assert (record["suspects"], record["findings"][0]["finding"]) == ([], "unfinished")


def test_more_than_half_call_something_else(tool: Tool, tmp_path: Path) -> None:
    job = tensor_and_data_parallel(8, 1, steps=2)
    job.programs[5] = changed(job.programs[5], 4, operation="broadcast")
    record = report_of(tool, *write(job.play(), tmp_path))
    assert record["suspects"] == [5]
    assert record["findings"][0]["calls"] == [
        {"ranks": [0, 1, 2, 3, 4, 6, 7], "call": "all_reduce of 64x8 Float"},
        {"ranks": [5], "call": "broadcast of 64x8 Float"},
    ]


def test_a_ring_that_lost_its_beginning_has_no_mismatch(tool: Tool, tmp_path: Path) -> None:
    job = tensor_and_data_parallel(2, 2, steps=5)
    job.programs[3] = job.programs[3][:17]
    dumps = job.play()
    for rank, dump in dumps.items():
        dump["entries"] = dump["entries"][3 + 2 * rank :]
    record = report_of(tool, *write(dumps, tmp_path))
    assert (record["suspects"], {finding["finding"] for finding in record["findings"]}) == ([3], {"missing"})


def test_lists_of_entries_as_torch_2_2_wrote_them(tool: Tool, tmp_path: Path) -> None:
    dumps = tensor_and_data_parallel(2, 1, steps=2)
    dumps.programs[1] = dumps.programs[1][:5]
    old = {rank: [dict(entry) for entry in dump["entries"]] for rank, dump in dumps.play().items()}
    for entry in (entry for entries in old.values() for entry in entries):
        entry["seq_id"] = entry.pop("collective_seq_id")
        del entry["process_group"], entry["is_p2p"]
    for rank, entries in old.items():
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(entries, protocol=2))
    record = report_of(tool, tmp_path)
    assert (record["suspects"], record["findings"][0]["missing"]) == ([1], [1])


def test_what_is_no_dump(tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_text("not a dump")
    (tmp_path / "empty_rank_1").write_text("")
    shutil.copy(SAMPLES / "nccl_late" / "nccl_trace_rank_0", tmp_path / "norank")
    (tmp_path / "directory").mkdir()
    for name, code in {"rank_0": 65, "empty_rank_1": 66, "norank": 65, "directory": 66, "nowhere": 66}.items():
        result = tool("stuck", str(tmp_path / name))
        assert (result.returncode, result.stdout) == (code, ""), name


def test_two_dumps_of_one_rank_are_of_two_jobs(tool: Tool) -> None:
    result = tool("stuck", str(SAMPLES / "nccl_late"), str(SAMPLES / "nccl_type"))
    assert result.returncode == 65
    assert "two flight recorder dumps of rank 0" in result.stderr


def test_files_that_are_no_dumps_are_left_out_of_a_directory(tool: Tool, tmp_path: Path) -> None:
    """A run's directory: lt-train's watchdog writes into stacks."""
    (tmp_path / "train.log").write_text("iteration 5")
    shutil.copytree(SAMPLES / "nccl_late", tmp_path / "stacks")
    result = tool("stuck", str(tmp_path))
    assert result.stdout.startswith("suspect: rank 1\n")
    assert "1 of 3 files are no dumps" in result.stderr
