"""AReaL: `Epoch 1/3 Step 12/100 Train step 112/300 done.`, and a table of the step's statistics below it, which is not read."""

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import StepLine, last_match, regex
from lt_monitor.logs.lines import Line

_STEP = regex(
    rb"\bEpoch (?P<epoch>\d{1,9})/\d{1,9} Step \d{1,15}/\d{1,15} Train step (?P<step>\d{1,15})/(?P<total>\d{1,15}) done\."
)


def step(line: Line) -> StepLine | None:
    match = last_match(_STEP, line.text)
    if match is None:
        return None
    # The line counts epochs from 1, records from 0.
    epoch = max(0, int(match["epoch"]) - 1)
    record: Record = {"kind": "step", "step": int(match["step"]), "total_steps": int(match["total"]), "epoch": epoch}
    return StepLine([], match.start(), match.end(), record)
