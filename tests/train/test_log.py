"""The log of a run is Megatron's, and metrics.jsonl holds the same numbers."""

import json
from pathlib import Path

from running import SMALL, run

from lt_shared import run_log
from lt_shared.manifest import Dataset
from lt_shared.run_log import CheckpointSaved, Evaluation, Step


def test_log_and_metrics(tmp_path: Path, dataset: Dataset) -> None:
    result = run(*SMALL, "--train-iters", "4", "--eval-interval", "2", "--save", str(tmp_path / "run"), dataset.prefix)
    assert result.code == 0, result.err
    lines = (tmp_path / "run/train.log").read_text().splitlines()
    assert set(lines) <= set(result.err.splitlines())
    arguments = run_log.parse_arguments(lines)
    assert arguments is not None
    assert (arguments["seq_length"], arguments["global_batch_size"], arguments["world_size"]) == ("64", "8", "1")
    events = [event for line in lines if (event := run_log.parse(line))]
    steps = [event for event in events if isinstance(event, Step)]
    assert [(step.step, step.total_steps, step.consumed_samples) for step in steps] == [(n, 4, 8 * n) for n in range(1, 5)]
    assert [event.step for event in events if isinstance(event, Evaluation)] == [2, 4]
    assert [event.step for event in events if isinstance(event, CheckpointSaved)] == [4]
    metrics = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for step, record in zip(steps, (record for record in metrics if record["kind"] == "step"), strict=True):
        assert record["step"] == step.step
        assert step.loss is not None
        assert abs(record["loss"] - step.loss) < 1e-5
        assert record["tokens_per_second"] > 0
        assert record["grad_norm"] > 0
