"""The keywords that `log_parser` searches for: those for the parsers, and its own under negative numbers."""

from lt_monitor.logs.fast.excerpts import LineSelection
from lt_monitor.logs.fast.prefilter import Prefilter
from lt_monitor.logs.formats import tracebacks
from lt_monitor.logs.formats.table import HEADS, PARSERS, keywords
from lt_monitor.logs.label_digits import keyword_pattern
from lt_monitor.logs.trainers import huggingface

EVENT_RECORD, DUMP, STEP_HEAD, TRACEBACK, USER_PATTERN = -1, -2, -3, -4, -5

KEYWORDS = {
    **keywords(),
    **{head: [STEP_HEAD] for head in HEADS},
    b'"kind":': [EVENT_RECORD],
    tracebacks.HEADING: [TRACEBACK],
    b" arguments -": [DUMP],
    b" across ranks (ms)": [DUMP],
}
PREFILTER = Prefilter(KEYWORDS)
NUMBERED = keyword_pattern(tuple(KEYWORDS))
SELECTION = LineSelection(
    PREFILTER,
    KEYWORDS,
    with_neighbours=(STEP_HEAD, TRACEBACK, DUMP),
    with_bars=[index for index, (parser, _) in enumerate(PARSERS) if parser is huggingface.figures],
)
