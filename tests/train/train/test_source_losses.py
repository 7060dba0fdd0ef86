"""The loss of each dataset of a blend, and of each validation set, against single samples and runs of their own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic
from layouts import train_all
from running import SMALL, train

from lt_shared.contracts.manifest import Dataset
from lt_train.data import blended_dataset
from lt_train.data.blended_dataset import SampleOrder

SHORT = (*SMALL, "--seq-length", "32", "--global-batch-size", "4")
STILL = (*SHORT, "--lr", "1e-20", "--ranks", "1", "--micro-batch-size", "1")


@pytest.fixture(scope="session")
def blend(tmp_path_factory: pytest.TempPathFactory, write_dataset: Callable[..., Dataset]) -> list[Dataset]:
    place = tmp_path_factory.mktemp("blend")
    return [
        write_dataset(place / name, first=first, documents=count) for name, first, count in (("web", 0, 60), ("code", 60, 30))
    ]


def words(blend: list[Dataset]) -> list[str]:
    return ["--train-data-path", "0.7", blend[0].prefix, "0.3", blend[1].prefix]


def metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == kind]


def test_the_losses_are_the_means_of_each_datasets_samples(tmp_path: Path, blend: list[Dataset]) -> None:
    """Also over several steps and through a resume, and however the ranks share the model, the sequence and the batch."""
    whole = ("--eval-iters", "0", *words(blend))
    one = train(*STILL, *whole, "--global-batch-size", "1", "--train-iters", "16", "--save", str(tmp_path / "one"))
    assert one.code == 0, one.err
    of_sample = [record["loss"] for record in metrics(tmp_path / "one", "step")]
    config = synthetic.plan(*STILL, *whole, "--vocab-size", "2048", "--train-iters", "4")
    samples = blended_dataset.build(SampleOrder.from_config(config), None).training
    assert samples is not None
    listed = tmp_path / "list"
    listed.write_text("3\n9-10\n")
    expected = []
    for numbers in (range(12), range(12, 16)):
        kept = [number for number in numbers if number not in (3, 9, 10)]
        expected.append([np.mean([of_sample[number] for number in kept if samples.dataset(number) == each]) for each in (0, 1)])
    common = (*SHORT, "--lr", "1e-20", *whole, "--train-iters", "4", "--log-interval", "3", "--skip-samples", str(listed))
    ways = {
        "one rank": ("--ranks", "1"),
        "tensor": ("--ranks", "2", "--tensor-model-parallel-size", "2"),
        "pipeline": ("--ranks", "2", "--pipeline-model-parallel-size", "2"),
        "context": ("--ranks", "2", "--context-parallel-size", "2"),
    }
    for name, outcome in train_all({name: (*common, *layout) for name, layout in ways.items()}, tmp_path, 2).items():
        assert outcome.error is None, (name, outcome.error)
    for more in (("--exit-interval", "2", "--save-interval", "2"), ()):
        done = train(*common, "--ranks", "2", *more, "--save", str(tmp_path / "data"))
        assert done.code in (0, 75), done.err
    for name in (*ways, "data"):
        found = [[record["loss on web"], record["loss on code"]] for record in metrics(tmp_path / name, "step")]
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)


def test_one_dataset_has_no_losses_by_source(tmp_path: Path, blend: list[Dataset]) -> None:
    done = train(*STILL, "--train-iters", "1", "--save", str(tmp_path / "run"), blend[0].prefix)
    assert done.code == 0, done.err
    assert "loss on" not in done.err


def test_each_validation_set_has_its_own_loss(tmp_path: Path, blend: list[Dataset]) -> None:
    short = (*SHORT, "--train-iters", "2", "--ranks", "1", "--eval-interval", "1", "--lr", "1e-3", *words(blend))
    alone = {}
    for name, dataset in zip(("web", "code"), blend, strict=True):
        done = train(*short, "--valid-data-path", dataset.prefix, "--save", str(tmp_path / name))
        assert done.code == 0, done.err
        alone[name] = [record["loss"] for record in metrics(tmp_path / name, "eval")]
        assert {record["split"] for record in metrics(tmp_path / name, "eval")} == {"validation"}
    both = train(
        *(*short, "--valid-data-path", f"web={blend[0].prefix}", f"code={blend[1].prefix}"),
        *("--save", str(tmp_path / "both"), "--tensorboard-dir", str(tmp_path / "events")),
    )
    assert both.code == 0, both.err
    found = metrics(tmp_path / "both", "eval")
    assert [(record["step"], record["split"], record["set"]) for record in found] == [
        *((1, "validation", "web"), (1, "validation-code", "code"), (2, "validation", "web"), (2, "validation-code", "code"))
    ]
    assert [record["loss"] for record in found if record["set"] == "web"] == alone["web"]
    assert [record["loss"] for record in found if record["set"] == "code"] == alone["code"]
    assert " validation loss at iteration 1 on validation set | lm loss value:" in both.err
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    assert {"lm loss validation", "lm loss validation-code", "loss on web", "loss on code"} <= set(events.Tags()["scalars"])
