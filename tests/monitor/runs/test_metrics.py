"""Which metrics there are, by which names, and what is said of those that there are not."""

import pytest
from made_runs import run_of, steps_of

from lt_monitor.runs import metrics
from lt_monitor.runs.speed import RunFacts, Sizes
from lt_shared.console import BadData, UsageError

STEP = {"loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-4, "memory_bytes": 3 * 2**30, "mfu": 0.4, "metrics": {"z Loss": 0.1}}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *(("loss", "loss", 2.0), ("lr", "learning_rate", 1e-4), ("learning-rate", "learning_rate", 1e-4)),
        *(("MFU", "mfu", 0.4), ("memory", "memory_bytes", 3.0), ("Grad Norm", "grad_norm", 1.0), ("z_loss", "z Loss", 0.1)),
    ],
)
def test_metrics_are_found_by_any_of_their_names(name: str, key: str, value: float) -> None:
    ((metric, (curve,)),) = metrics.curves_of([run_of(STEP)], RunFacts(), [name])
    assert metric.key == key
    assert [part.tolist() for part in curve] == [[1], [pytest.approx(value)]]


def test_the_name_that_the_log_gives_comes_before_similar_ones() -> None:
    run = run_of({"loss": 2.0, "metrics": {"z-loss": 1.0, "z_loss": 3.0}})
    assert [metric.key for metric, _ in metrics.curves_of([run], RunFacts(), ["z_loss", "z-loss"])] == ["z_loss", "z-loss"]


def test_a_metric_that_no_run_has_is_an_error_that_lists_those_there_are() -> None:
    runs = [run_of({"loss": 2.0, "metrics": {"a\x1b[2J": 1.0}}), run_of({"loss": 2.0, "params_norm": 3.0, "grad_norm": None})]
    with pytest.raises(UsageError, match="--metric perplexity: no run has it") as error:
        metrics.curves_of(runs, RunFacts(), ["loss", "perplexity"])
    assert error.value.hint == r"there are: loss, a\x1b[2J, params_norm"
    ((_, curves),) = metrics.curves_of(runs, RunFacts(), ["params_norm"])
    assert [len(numbers) for numbers, _ in curves] == [0, 1]


def test_without_names_there_are_loss_gradient_norm_and_speed() -> None:
    full = {"loss": 2.0, "grad_norm": 1.0, "step_seconds": 2.0, "params_norm": 1.0}
    assert [metric.key for metric, _ in metrics.curves_of([run_of(full)], RunFacts())] == ["loss", "grad_norm", "step_seconds"]
    assert [metric.key for metric, _ in metrics.curves_of([run_of({"loss": 2.0})], RunFacts())] == ["loss"]
    with pytest.raises(BadData, match="no step has a loss"):
        metrics.curves_of([run_of({"loss": None})], RunFacts())


def test_runs_are_compared_in_a_measure_that_all_have() -> None:
    one = steps_of({"tokens_per_second": 100.0, "step_seconds": 1.0})
    other = steps_of({"tokens_per_second_per_gpu": 9.0, "step_seconds": 2.0})
    sizes = Sizes()
    assert metrics.speed_curves([one], [sizes])[0].short == "tokens/s"
    assert metrics.speed_curves([other], [sizes])[0].short == "tokens/s/GPU"
    assert metrics.speed_curves([one, other], [sizes, Sizes(gpus=2)])[0].short == "tokens/s"
    measure, curves = metrics.speed_curves([one, other], [sizes, sizes])
    assert (measure.short, [values.tolist() for _, values in curves]) == ("s/step", [[1.0], [2.0]])
    nothing = steps_of({"loss": 1.0})
    assert metrics.speed_curves([one, nothing], [sizes, sizes])[0].short == "tokens/s"
    assert [len(curve[0]) for curve in metrics.speed_curves([nothing], [sizes])[1]] == [0]
