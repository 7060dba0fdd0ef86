"""Training on streams: from a pipe while it grows, from a file that is followed, in a blend, and when the producer dies.

Kills at any moment are in tests/hostile/test_pipe_campaign.py.
"""

import dataclasses
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running import SMALL, environment, losses, quick_command, train

from lt_shared.console import ExitCode
from lt_shared.contracts import manifest
from lt_shared.contracts.checkpoint_layout import RunRecord
from lt_shared.contracts.manifest import Dataset

STEPS = (
    *("--train-iters", "40", "--save-interval", "10", "--lr", "1e-3", "--eval-iters", "1", "--ranks", "1"),
    # All of a step at once.
    *("--micro-batch-size", "8"),
)


def lines_of(shards: list[Dataset]) -> list[str]:
    name = shards[0].prefix.removesuffix("0") + "stream"
    described = [
        dataclasses.replace(shard, stream=name, part=number, weight=float(shard.tokens or 1))
        for number, shard in enumerate(shards)
    ]
    end = json.dumps({"v": 1, "kind": "end", "count": len(shards)})
    return [json.dumps(manifest.record_of(shard)) + "\n" for shard in described] + [end + "\n"]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory, write_dataset: Callable[..., Dataset]) -> list[str]:
    place = tmp_path_factory.mktemp("shards")
    return lines_of([write_dataset(place / f"data{number}", 40 * number, 40) for number in range(4)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> Path:
    """A run on the finished list."""
    place = tmp_path_factory.mktemp("finished")
    (place / "list").write_text("".join(lines))
    done = train(*SMALL, *STEPS, "--save", str(place / "run"), f"@{place / 'list'}")
    assert done.code == 0, done.err
    return place / "run"


def started(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        quick_command(*arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def write(process: "subprocess.Popen[str]", lines: list[str]) -> None:
    assert process.stdin
    process.stdin.write("".join(lines))
    process.stdin.flush()


def waits(run: Path) -> bool:
    """Whether the run has trained on all that it has: its steps end before the last."""
    before = reached(run)
    time.sleep(2)
    return before == reached(run) > 0


def reached(run: Path) -> int:
    return max((step for kind, step in losses(run) if kind == "step"), default=0) if (run / "metrics.jsonl").exists() else 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_pipe_that_comes_slowly_is_the_finished_list(tmp_path: Path, lines: list[str], finished: Path) -> None:
    with started(*SMALL, *STEPS, "--save", str(tmp_path / "run"), "-") as process:
        write(process, lines[:1])
        until(lambda: waits(tmp_path / "run"))
        assert reached(tmp_path / "run") < 40
        write(process, lines[1:])
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert losses(tmp_path / "run") == losses(finished)
    steps = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert max(step.get("data_seconds", 0) for step in steps) > 1
    record = RunRecord.read(tmp_path / "run/iter_0000040")
    assert record.streams
    (stream,) = record.streams
    assert stream["window_tokens"] == 1
    assert stream["shards"][0]["tokens"] == json.loads(lines[0])["tokens"]


def test_a_producer_that_dies(tmp_path: Path, lines: list[str], finished: Path) -> None:
    """What is trained is saved and the code says that the same pipe goes on, which it does to the same losses."""
    options = (*SMALL, *STEPS, "--save", str(tmp_path / "run"), "--save-interval", "1000", "-")
    with started(*options) as process:
        write(process, lines[:1])
        out, err = process.communicate(timeout=120)
    assert process.returncode == ExitCode.TRY_AGAIN, err
    assert "the stream ended after 1 shard(s), without its end line: its producer failed or was ended" in err
    step = reached(tmp_path / "run")
    assert 0 < step < 40
    assert json.loads(out.splitlines()[0])["iteration"] == step
    with started(*options) as process:
        write(process, lines)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert losses(tmp_path / "run") == losses(finished)


def test_another_window_or_other_shards_are_refused(
    tmp_path: Path, lines: list[str], write_dataset: Callable[..., Dataset]
) -> None:
    listed = tmp_path / "list"
    listed.write_text("".join(lines))
    options = (*SMALL, *STEPS, "--save", str(tmp_path / "run"), f"@{listed}")
    assert train(*options, "--exit-interval", "10").code == ExitCode.TRY_AGAIN
    window = train(*options, "--shuffle-window", "10000")
    assert (window.code, "--shuffle-window 1, and not 10000" in window.err) == (ExitCode.BAD_CONFIG, True)
    others = [write_dataset(tmp_path / f"data{number}", 40 * number, 40 + number) for number in range(4)]
    listed.write_text("".join(lines_of(others)))
    changed = train(*options)
    assert changed.code == ExitCode.BAD_DATA, changed.err
    assert "shard 1," in changed.err
    assert "is another one than the run was trained on" in changed.err
    # As a blend of datasets, the parts would come in another order.
    blend = train(*options[:-1], "--split", "90,10,0", *(json.loads(line)["prefix"] for line in lines[:-1]))
    assert (blend.code, "1 stream(s) of data, and not on 0" in blend.err) == (ExitCode.BAD_CONFIG, True)


def test_a_list_that_is_damaged_while_it_is_followed(tmp_path: Path, lines: list[str], finished: Path) -> None:
    """What is trained is saved before the run ends, and goes on when the list is mended."""
    growing = tmp_path / "growing"
    options = (*SMALL, *STEPS, "--save", str(tmp_path / "run"), "--save-interval", "1000", "--follow", f"@{growing}")
    growing.write_text(lines[0])
    with started(*options) as process:
        until(lambda: waits(tmp_path / "run"))
        growing.write_text(lines[0] + "no line of a list\n")
        out, err = process.communicate(timeout=120)
    assert process.returncode == ExitCode.BAD_DATA, err
    assert str(growing) in err
    assert json.loads(out.splitlines()[0])["iteration"] == reached(tmp_path / "run")
    growing.write_text("".join(lines))
    again = train(*options)
    assert again.code == 0, again.err
    assert losses(tmp_path / "run") == losses(finished)


def test_followed_files_in_a_blend_with_a_dataset(tmp_path: Path, lines: list[str], dataset: Dataset) -> None:
    """All of it read from a store, which is the local disk by another name."""
    growing, whole = tmp_path / "growing", tmp_path / "whole"
    whole.write_text("".join(lines))
    lines = [line.replace('"prefix": "/', '"prefix": "file:///') for line in lines]
    growing.write_text(lines[0])

    def arguments(name: str, listed: Path, store: str = "") -> Iterator[str]:
        yield from (*SMALL, *STEPS, "--eval-iters", "0", "--save", str(tmp_path / name))
        yield from (
            "--object-storage-cache-path",
            str(tmp_path / "cache"),
            "0.7",
            f"@{listed}",
            "0.3",
            f"{store}{dataset.prefix}",
        )

    expected = train(*arguments("one", whole))
    assert expected.code == 0, expected.err
    unfinished = train(*arguments("none", growing))
    assert (unfinished.code, "--follow trains on it" in unfinished.err) == (ExitCode.NO_INPUT, True)
    with started(*arguments("two", growing, "file://"), "--follow") as process:
        until(lambda: waits(tmp_path / "two"))
        assert reached(tmp_path / "two") < 40
        # Killed, and started again from its beginning: its lines are the same.
        growing.write_text("")
        growing.write_text("".join(lines))
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    assert len([*(tmp_path / "cache").glob("dataset-*/*.idx")]) == 5
    assert not [*(tmp_path / "cache").glob("dataset-*/*.bin")]


def test_the_length_of_a_run(tmp_path: Path, lines: list[str]) -> None:
    """Of one finished stream an epoch, of one that grows it must be said."""
    listed = tmp_path / "list"
    listed.write_text("".join(lines))
    (tmp_path / "growing").write_text(lines[0])
    unsaid = train(*SMALL, "--dry-run", "--follow", f"@{tmp_path / 'growing'}")
    assert (unsaid.code, "--train-tokens" in unsaid.err) == (ExitCode.USAGE, True)
    # Whether it is finished is seen by one node before another.
    assert train(*SMALL, "--dry-run", "--follow", f"@{listed}").code == ExitCode.USAGE
    plan = json.loads(train(*SMALL, "--dry-run", f"@{listed}").out)
    tokens = sum(json.loads(line)["tokens"] for line in lines[:-1])
    assert 0.9 * tokens < plan["tokens"] < tokens
    useless = train(*SMALL, "--mock-data", "--shuffle-window", "5")
    assert (useless.code, "no data is a stream" in useless.err) == (ExitCode.USAGE, True)
