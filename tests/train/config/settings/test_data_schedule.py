"""Phases of a run: what a file may say, where the phases end, and what is refused before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest
import synthetic

from lt_shared.console import BadConfig, UsageError
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import data_schedule
from lt_train.config.settings.data import changes_of_order

SIZES = ("--seq-length", "16", "--global-batch-size", "4", "--eval-iters", "0", "--split", "1,0,0")


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    return [synthetic.write(tmp_path / name, [9] * 60).prefix for name in ("web", "code")]


def planned(tmp_path: Path, data: list[str], content: Any, *arguments: str, sizes: tuple[str, ...] = SIZES) -> RunConfig:
    path = tmp_path / "schedule"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return synthetic.plan(*sizes, "--data-schedule", str(path), "--save", str(tmp_path / "run"), *arguments, *data)


def test_phases_of_a_file(tmp_path: Path, data: list[str]) -> None:
    config = planned(
        tmp_path,
        data,
        f"""
phases:
  - name: first
    tokens: 1_000
    weights: {{web: 3, code: 1}}
  - name: same weights as on the command line
    samples: 9
  - {{name: long, tokens: 2e3, weights: {{"{data[1]}": 1}}, seq-length: 64, rotary-base: 500000}}
  - {{name: scaled, samples: 4, seq_length: 64, rotary_base: 500000, rope-scaling: {{rope_type: linear, factor: 2.0}}}}
""",
        "2",
    )
    phases = config.schedule.phases
    assert [(phase.samples, phase.weights, phase.seq_length) for phase in phases] == [
        (62, (3.0, 1.0), 16),
        (9, (2.0, 1.0), 16),
        (31, (0.0, 1.0), 64),
        (4, (2.0, 1.0), 64),
    ]
    assert [phase.architecture.rotary_base for phase in phases] == [10000.0, 10000.0, 500000.0, 500000.0]
    # 62, 71, 102 and 106 samples, in whole steps of four.
    assert config.schedule.last_steps(config.batches) == [15, 17, 25, 26]
    assert config.batches.train_iters == 26
    assert [phase.samples for phase in config.schedule.sample_phases(config.batches)] == [60, 8, 32, 4]
    assert config.tokens(104) == 68 * 16 + 36 * 64
    assert config.tokens(70) == 68 * 16 + 2 * 64
    assert [config.schedule.end_of_form(config.batches, steps) for steps in (0, 15, 16, 17, 24, 25)] == [17, 17, 17, 25, 25, 26]
    assert [form.batches.seq_length for form in config.forms] == [16, 64, 64]
    assert [config.at_step(steps).architecture.rotary_base for steps in (0, 16, 17)] == [10000.0, 10000.0, 500000.0]
    assert config.at_step(20).at_step(3) == config
    assert RunConfig.from_json(config.to_json()) == config


def test_a_growing_batch(tmp_path: Path, data: list[str]) -> None:
    phases = {"phases": [{"name": "a", "samples": 11}, {"name": "b", "samples": 12}]}
    config = planned(tmp_path, data, phases, "--rampup-batch-size", "2", "2", "8")
    # Steps of 2, 2, 2, 2, 2, 4 ... samples.
    ends = config.schedule.last_steps(config.batches)
    assert [config.batches.samples_after(end) <= samples for end, samples in zip(ends, (11, 23), strict=True)] == [True, True]
    assert [config.batches.samples_after(end + 1) > samples for end, samples in zip(ends, (11, 23), strict=True)] == [True, True]


def test_a_schedule_of_batch_sizes(tmp_path: Path, data: list[str]) -> None:
    """Tokens 0 and 160 are samples 0 and 10; the second phase has steps of 6, the third the schedule's 4."""
    phases: list[dict[str, Any]] = [
        {"name": "a", "samples": 8},
        {"name": "b", "samples": 12, "global-batch-size": 6},
        {"name": "c", "samples": 8},
    ]
    sizes = ("--step-batch-size-schedule", "0:2 160:4", *SIZES[:2], *SIZES[4:])
    config = planned(tmp_path, data, {"phases": phases}, sizes=sizes)
    batches = config.batches
    assert [batches.size_at(batches.samples_after(steps)) for steps in range(batches.train_iters)] == [2] * 4 + [6] * 2 + [4] * 2
    assert config.schedule.last_steps(batches) == [4, 6, 8]
    phases[2]["seq-length"] = 64
    with pytest.raises(BadConfig, match="the phase c has samples of 64 tokens"):
        planned(tmp_path, data, {"phases": phases}, sizes=sizes)


def test_batch_sizes_of_phases(tmp_path: Path, data: list[str]) -> None:
    """14 samples in steps of 4, up to 34 in steps of 10, up to 44 in steps of 4: what is left of a phase is the next one's."""
    phases = [{"name": "a", "samples": 14}, {"name": "b", "samples": 20, "global-batch-size": 10}, {"name": "c", "samples": 10}]
    options = ("--lr-decay-style", "WSD", "--lr-wsd-decay-iters", "4", "--lr-warmup-iters", "1")
    config = planned(tmp_path, data, {"phases": phases}, *options)
    batches = config.batches
    assert config.schedule.last_steps(batches) == [3, 5, 8]
    assert [batches.size_at(batches.samples_after(steps)) for steps in range(8)] == [4, 4, 4, 10, 10, 4, 4, 4]
    assert [phase.samples for phase in config.schedule.sample_phases(batches)] == [12, 20, 12]
    assert (batches.train_iters, batches.train_samples, batches.sizes) == (8, 44, (4, 10))
    assert config.schedule.described(batches)[1] == "b, steps 4 to 5 of 10 x 16 tokens"
    assert (config.optimization.lr_decay_samples, config.optimization.wsd_decay_samples) == (44, 22)
    assert [record.get("global_batch_size") for record in (phase.record() for phase in config.schedule.phases)] == [
        None,
        10,
        None,
    ]
    assert RunConfig.from_json(config.to_json()) == config
    assert planned(tmp_path, data, {"phases": phases}, *options, "--parallel", "auto").batches == batches
    with pytest.raises(BadConfig, match="global batch size 10 is not a multiple of micro batch size 4"):
        planned(tmp_path, data, {"phases": phases}, "--micro-batch-size", "4")
    with pytest.raises(BadConfig, match="phase b is shorter than a step: 5 samples"):
        planned(tmp_path, data, {"phases": [phases[0], {**phases[1], "samples": 5}]})


def one(**fields: Any) -> dict[str, Any]:
    return {"phases": [{"name": "a", "samples": 8, **fields}]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[]", "mapping of `phases`"),
        ({"phases": []}, "not a list of mappings"),
        ({"phases": [{"name": "a", "samples": 8}], "seed": 3}, "mapping of `phases` alone"),
        ("phases: [{name: a, name: b}]", "'name' twice"),
        (one(name=""), "needs a name"),
        (one(lr=1), "no setting 'lr'"),
        (one(tokens=100), "either tokens or samples"),
        ({"phases": [{"name": "a"}]}, "either tokens or samples"),
        (one(samples=0), "samples is 0"),
        (one(samples="many"), "samples is 'many'"),
        (one(samples=True), "samples is True"),
        (one(samples=2.5), "samples is 2.5"),
        (one(weights={"books": 1}), "no dataset 'books'; there are web, code"),
        (one(weights={"web": -1}), "weight of web is -1"),
        (one(weights={"web": 0}), "all weights are 0"),
        (one(weights=[1, 2]), "expected a mapping"),
        (one(samples=3), "shorter than a step"),
        (one(rope_scaling={"rope_type": "magic"}), "magic"),
        ({"phases": [*one()["phases"], *one()["phases"]]}, "two phases are called a"),
    ],
)
def test_what_is_no_schedule(tmp_path: Path, data: list[str], content: Any, problem: str) -> None:
    with pytest.raises(BadConfig, match=problem):
        planned(tmp_path, data, content)


def test_a_schedule_is_the_length_of_a_run_of_datasets(tmp_path: Path, data: list[str]) -> None:
    with pytest.raises(UsageError, match="--data-schedule and --train-tokens"):
        planned(tmp_path, data, one(), "--train-tokens", "1000")
    with pytest.raises(UsageError, match="without datasets"):
        planned(tmp_path, ["--mock-data"], one())


def test_every_phase_is_checked(tmp_path: Path, data: list[str]) -> None:
    longer = {"phases": [*one()["phases"], {"name": "b", "samples": 8, "seq_length": 4096}]}
    with pytest.raises(BadConfig, match="sequence length 4096 exceeds"):
        planned(tmp_path, data, longer)
    (tmp_path / "schedule").write_text(json.dumps({"phases": [*one()["phases"], {"name": "b", "samples": 8, "seq_length": 32}]}))
    with pytest.raises(BadConfig, match="continues from a checkpoint"):
        synthetic.plan(*SIZES, "--data-schedule", str(tmp_path / "schedule"), *data)


def test_what_changes_the_order_of_a_run_that_has_begun(tmp_path: Path, data: list[str]) -> None:
    here = [{"name": "a", "samples": 8}, {"name": "b", "samples": 8}]
    later = [here[0], {"name": "c", "samples": 99}]
    assert not data_schedule.changes(here, later, 8)
    assert data_schedule.changes(here, later, 9)
    assert data_schedule.changes(None, here, 1)
    assert data_schedule.changes(here, here[:1], 9)
    arguments = {"seed": 1, "split": None, "seq_length": 16, "data_path": ["a"], "data_schedule": here}
    assert not changes_of_order(arguments, arguments | {"seq_length": 32, "data_schedule": later}, 8)
    assert changes_of_order(arguments, arguments | {"data_schedule": None}, 8)
