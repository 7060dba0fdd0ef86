"""Evaluate the model on validation and test data."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lt_shared.contracts.run_log import Evaluation as Evaluated
from lt_train.config.settings.optimization import averaged_set
from lt_train.process.signals import Reason
from lt_train.train.hooks.hook import Hook

if TYPE_CHECKING:
    from lt_shared.data.sample_order.samples import Samples
    from lt_train.checkpoint.training_state import TrainingState
    from lt_train.metrics.log import Log
    from lt_train.process.watchdog import Watchdog
    from lt_train.train.forward_backward import ForwardBackward
    from lt_train.train.train_step import StepResult


class Evaluation(Hook):
    """Evaluate `validation` every `interval` steps and after the last step, and `test` after the last step.

    Each evaluation of a dataset reads its same first `global_batches`, so that the losses can be compared. `batches_of` iterates
    over the micro batches of a dataset. If the run averages its weights, the averages are evaluated on the same batches.
    `hold_back_update` waits until the weights may change, because a save may still read them.
    """

    IS_PAUSE = True

    def __init__(
        self,
        validation: Mapping[str, "Samples"],
        test: "Samples | None",
        batches_of: Callable[["Samples"], Iterator[Any]],
        interval: int,
        global_batches: int,
        total_steps: int,
        state: "TrainingState",
        forward_backward: "ForwardBackward",
        log: "Log",
        watchdog: "Watchdog",
        hold_back_update: Callable[[], None],
    ):
        self.validation = validation
        self.test = test
        self.batches_of = batches_of
        self.interval = interval
        self.global_batches = global_batches
        self.total_steps = total_steps
        self.state = state
        self.forward_backward = forward_backward
        self.log = log
        self.watchdog = watchdog
        self.hold_back_update = hold_back_update

    def after_step(self, result: "StepResult", stop: Reason) -> None:
        is_last = self.state.iteration == self.total_steps
        if not (is_last or self.state.iteration % self.interval == 0):
            return
        test = self.test if is_last else None
        for number, (name, samples) in enumerate(self.validation.items()):
            self._evaluate("validation", samples, name, number == 0)
        if test:
            self._evaluate("test", test)
        if self.state.average and (self.validation or test):
            self.hold_back_update()
            with self.state.average.applied():
                for name, samples in self.validation.items():
                    self._evaluate("validation", samples, averaged_set(name), is_first=False)
                if test:
                    self._evaluate("test", test, averaged_set(None), is_first=False)

    def _evaluate(self, split: str, samples: "Samples", name: str = "", is_first: bool = True) -> None:
        batches = self.batches_of(samples)
        with self.watchdog.slow():
            loss = self.forward_backward.evaluate(batches, self.global_batches)
        self.log.evaluation(Evaluated(self.state.iteration, loss, split, name or None, is_first))
