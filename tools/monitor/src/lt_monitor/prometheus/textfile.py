"""`lt-monitor prom`: the metrics of runs as a file for node_exporter's textfile collector.

With an output file the command remembers what it has read in `FILE.state` beside it: in a pipeline it gets only the new events,
and a run that hangs gives none at all, just when its metrics matter most. The collector reads `*.prom` only.
"""

import sys
import time
from collections.abc import Sequence

from lt_monitor.collect.command_state import CommandState
from lt_monitor.logs.plausible_times import PlausibleTimes
from lt_monitor.prometheus import exposition
from lt_monitor.runs.run_state import state_of
from lt_monitor.runs.speed import Known
from lt_shared import storage
from lt_shared.console import UsageError

STANDARD_OUTPUT = "-"
# node_exporter runs as another user, whatever the umask here.
MODE = 0o644


def prom(patterns: Sequence[str], output: str = STANDARD_OUTPUT, now: float | None = None, known: Known | None = None) -> None:
    """Write the metrics of the runs in the logs to the file `output`, or to stdout for `-`; `known` is for what they do not show.

    Raises: UsageError for a name that the collector does not read, what `CommandState.open` and `storage.publish` raise.
    """
    moment = time.time() if now is None else now
    if output != STANDARD_OUTPUT and not output.endswith(".prom"):
        raise UsageError(f"{output}: node_exporter reads only files whose names end in .prom")
    state_file = None if output == STANDARD_OUTPUT else f"{output}.state"
    times = PlausibleTimes(moment)
    with CommandState.open(state_file, "prom", patterns) as state:
        state.feed(lambda record: state_of(state.runs, record["run"]).take(times.checked(record), moment))
        times.warn()
        text = exposition.render(state.runs.values(), moment, known or Known())
        if output == STANDARD_OUTPUT:
            sys.stdout.write(text)
        else:
            with storage.publish(output, MODE) as file:
                file.write(text.encode())
        state.save()
