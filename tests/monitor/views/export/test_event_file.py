"""Event files as TensorBoard's own reader sees them, and byte for byte as its own writer writes them."""

from pathlib import Path

import numpy as np
import pytest

from lt_monitor.views.export import event_file

# Where a step takes one byte more.
STEPS = np.array([0, 1, 127, 128, 16_383, 16_384, 5_000_000, 2**31, 2**53])
TIMES = 1.7e9 + 0.25 * np.arange(len(STEPS))
VALUES = np.array([0.0, -1.5, 1e300, np.nan, 1e-30, 3.0, -0.0, 7.25, 11.0])
with np.errstate(over="ignore"):
    SINGLES = VALUES.astype(np.float32)


def test_records_are_those_of_tensorboards_writer(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    with open(tmp_path / "theirs", "wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=12.5, file_version="brain.Event:2").SerializeToString())
        for step, time, value in zip(STEPS[1:].tolist(), TIMES[1:].tolist(), SINGLES[1:], strict=True):
            summary = Summary(value=[Summary.Value(tag="lm löss", simple_value=float(value))])
            writer.write(Event(wall_time=time, step=step, summary=summary).SerializeToString())
    ours = event_file.header(12.5) + b"".join(event_file.scalars("lm löss", STEPS[1:], TIMES[1:], VALUES[1:]))
    assert ours == (tmp_path / "theirs").read_bytes()


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    content = event_file.header(1.0) + b"".join(event_file.scalars("a/b", STEPS, TIMES, VALUES))
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0}).Reload().Scalars("a/b")
    assert [event.step for event in events] == STEPS.tolist()
    assert [event.wall_time for event in events] == TIMES.tolist()
    assert [event.value for event in events] == pytest.approx(SINGLES.tolist(), nan_ok=True)


def test_many_values_are_written_in_blocks() -> None:
    size = event_file.ROWS + 10
    steps = np.arange(20_000, 20_000 + size)
    blocks = list(event_file.scalars("a", steps, steps * 1.0, steps * 1.0))
    assert len(blocks) == 2
    assert {len(block) % (len(blocks[1]) // 10) for block in blocks} == {0}
