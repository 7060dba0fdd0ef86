"""Steps of many lines: where blocks of the log end, and where a step does."""

import json
from typing import Any

import numpy as np
import pytest
from trainer_logs import log_path

from lt_monitor.events.records import Record
from lt_monitor.events.steps import Steps
from lt_monitor.logs.log_parser import LogParser

LOGS = ("olmo", "olmo_epochs", "composer", "composer_eval", "deepspeed", "deepspeed_megatron")


def parsed(*blocks: bytes) -> list[Record]:
    """The events of the blocks, each read by a parser that continues from the stored state of the one before."""
    state: dict[str, Any] = {}
    offset = 0
    records: list[Record] = []
    for block in blocks:
        parser = LogParser(state)
        records += parser.parse(block, offset).records("log", "log")
        state = json.loads(json.dumps(parser.to_record()))
        offset += len(block)
    return records


def steps(records: list[Record]) -> Steps:
    return Steps.from_records([record for record in records if record["kind"] == "step"])


@pytest.mark.parametrize("name", LOGS)
def test_wherever_a_block_ends(name: str) -> None:
    log = log_path(name).read_bytes()
    lines = log.splitlines(keepends=True)
    whole = steps(parsed(log))
    for cut in range(1, len(lines)):
        split = steps(parsed(b"".join(lines[:cut]), b"".join(lines[cut:])))
        assert np.array_equal(split.numbers, whole.numbers), cut
        assert split.columns.keys() == whole.columns.keys(), cut
        for field, column in whole.columns.items():
            assert np.array_equal(split.columns[field], column, equal_nan=True), (cut, field)
        assert np.array_equal(split.times, whole.times, equal_nan=True), cut


@pytest.mark.parametrize("name", LOGS)
def test_blocks_of_one_line(name: str) -> None:
    log = log_path(name).read_bytes()
    whole, single = steps(parsed(log)), steps(parsed(*log.splitlines(keepends=True)))
    assert np.array_equal(single.numbers, whole.numbers)
    for field, column in whole.columns.items():
        assert np.array_equal(single.columns[field], column, equal_nan=True), field


def test_a_line_without_values_ends_the_step() -> None:
    log = (
        b"[2024-04-17 09:42:26] INFO     [olmo.train:816, rank=0] [step=1/10]\n"
        b"    train/CrossEntropyLoss=11.25\n"
        b"Saving the configuration\n"
        b"    throughput/device/tokens_per_second=45,538\n"
    )
    (step,) = parsed(log)
    assert (step["step"], step["loss"]) == (1, 11.25)
    assert "tokens_per_second_per_gpu" not in step


def test_deepspeed_reads_no_further_than_the_line_below() -> None:
    log = (
        b"[2022-03-11 02:06:58,985] [INFO] [logging.py:69:log_dist] [Rank 0] step=40, skipped=2, lr=[5e-05], mom=[0.9]\n"
        b"[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.5\n"
        b"[2022-03-11 02:06:59,985] [INFO] [timer.py:189:stop] 0/41, SamplesPerSec=12.5\n"
    )
    (step,) = parsed(log)
    assert (step["step"], step["samples_per_second"]) == (40, 83.5)


@pytest.mark.parametrize("prefix", [b"0: ", b"[default0]:", b"[pod/train-0/main] 2025-01-01T10:00:00.123456789Z "])
def test_labels_of_launchers(prefix: bytes) -> None:
    log = b"".join(prefix + line for line in log_path("olmo_epochs").read_bytes().splitlines(keepends=True))
    found = [(record["step"], record["loss"], record["grad_norm"]) for record in parsed(log)]
    assert found == [(1, 12.18, 231.7), (2, 1.7872662283480167e-06, 0.0002), (3, 0.0, 7.725906669975302e-08)]


def test_a_state_of_an_older_version_begins_outside_any_step() -> None:
    parser = LogParser({"dumps": {}, "last_step": 5})
    assert parser.parse(b"    train/CrossEntropyLoss=11.25\n", 0).records("log", "log") == []
