"""NeuronX Distributed on Trainium: the step lines of its training examples, and of its Lightning module behind a bar.

Lightning's bar and the step are on one line, with no newline between them. The bar shows the values of the previous step, rounded
to four characters, so only the step's values are read. The bar counts micro batches, so its total is no number of steps.
"""

import re

from lt_monitor.logs.fields import RANK, Field, Value
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line
from lt_shared.contracts.run_log import NUMBER

_EXAMPLE = regex(
    rb"\bstep (?P<step>\d{1,15}) step_time (?P<seconds>" + NUMBER + rb")s throughput (?P<throughput>" + NUMBER + rb") seq/s"
    rb" loss (?P<loss>" + NUMBER + rb")(?: grad norm (?P<grad_norm>" + NUMBER + rb"))?"
)
_LIGHTNING = regex(
    rb"step (?P<step>\d{1,15}) loss is (?P<loss>" + NUMBER + rb"), lr is (?P<lr>" + NUMBER + rb"),"
    rb" throughput (?P<throughput>" + NUMBER + rb") seq/s, {1,4}input_ids (?P<input_ids>" + NUMBER + rb"),"
    rb" norm (?:tensor\(\[?)?(?P<grad_norm>" + NUMBER + rb")[^|\r\n]{0,80}?(?:, global rank (?P<rank>\d{1,6})|$)"
)

_FIELDS = {
    "step": Field("step", is_count=True),
    "seconds": Field("step_seconds"),
    "throughput": Field("samples_per_second"),
    "loss": Field("loss"),
    "lr": Field("learning_rate"),
    "grad_norm": Field("grad_norm"),
    # The sum of the tokens' ids.
    "input_ids": None,
}


def example_step(line: Line) -> StepLine | None:
    match = last_match(_EXAMPLE, line.text)
    return None if match is None else StepLine([*_values(match), *line.labels], *match.span())


def lightning_step(line: Line) -> StepLine | None:
    match = last_match(_LIGHTNING, line.text)
    if match is None:
        return None
    labels = line.labels
    if match["rank"] is not None:
        labels = [(RANK, *match.span("rank")), *(label for label in labels if label[0] is not RANK)]
    return StepLine([*_values(match), *labels], *match.span())


def _values(match: re.Match[bytes]) -> list[Value]:
    groups = match.re.groupindex
    return [(field, *match.span(name)) for name, field in _FIELDS.items() if name in groups and match[name] is not None]
