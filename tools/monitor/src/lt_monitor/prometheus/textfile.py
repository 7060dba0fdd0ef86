"""`lt-monitor prom`: the metrics of runs as a file for node_exporter's textfile collector.

With an output file, the command keeps the state of the runs in `FILE.state` beside it, because in a pipeline it gets only new
events, and a run that hangs produces none, just when its metrics matter most. The collector reads `*.prom` only.
"""

import hashlib
import os
import sys
import time
from collections.abc import Sequence

from lt_monitor.collect.command_state import CommandState
from lt_monitor.events.plausible_times import PlausibleTimes
from lt_monitor.prometheus import exposition
from lt_monitor.runs.speed import RunFacts
from lt_monitor.runs.state_lookup import state_for
from lt_shared.console import UsageError
from lt_shared.files import storage

STANDARD_OUTPUT = "-"
# node_exporter runs as another user, whatever the umask here.
MODE = 0o644
LABEL_CHARACTERS = 300


def prom(
    patterns: Sequence[str], output: str = STANDARD_OUTPUT, now: float | None = None, run_facts: RunFacts | None = None
) -> None:
    """Write the metrics of the runs in the logs to the file `output`, or to stdout for `-`; `run_facts` fill in what logs lack.

    Raises: UsageError for a name that the collector does not read, what `CommandState.open` and `storage.publish` raise.
    """
    moment = time.time() if now is None else now
    if output != STANDARD_OUTPUT and not output.endswith(".prom"):
        raise UsageError(f"{output}: node_exporter reads only files whose names end in .prom")
    state_file = None if output == STANDARD_OUTPUT else f"{output}.state"
    times = PlausibleTimes(moment)
    with CommandState.open(state_file, "prom", patterns) as state:
        state.feed(lambda record: state_for(state.runs, record).take(times.with_plausible_time(record), moment))
        times.warn()
        blocks = exposition.blocks(state.runs.values(), moment, run_facts or RunFacts(), _monitor(patterns, output))
        if output == STANDARD_OUTPUT:
            sys.stdout.writelines(blocks)
        else:
            with storage.publish(output, MODE) as file:
                file.writelines(block.encode() for block in blocks)
        state.save()


def _monitor(patterns: Sequence[str], output: str) -> str:
    """Return a label that differs from other monitors' labels on the machine: the path of the file, on standard output the logs.

    An exporter may read several directories, so the name of a file is not enough. Standard input is named by the working
    directory. A long label is cut and gets its checksum. Bytes that are not UTF-8 stay apart, because the label escapes them.
    """
    if output != STANDARD_OUTPUT:
        label = os.path.abspath(output).removesuffix(".prom")
    else:
        label = " ".join(log if storage.is_remote(log) else os.path.abspath(log) for log in patterns)
    if len(label) <= LABEL_CHARACTERS:
        return label
    return f"{label[:LABEL_CHARACTERS]}… {hashlib.sha256(os.fsencode(label)).hexdigest()[:12]}"
