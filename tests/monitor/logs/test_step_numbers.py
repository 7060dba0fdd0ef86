"""Dicts of Hugging Face's Trainer that do not name their step, numbered by the bar before them or by counting."""

import json
from pathlib import Path

import pytest

from lt_monitor.logs.log_parser import LogParser
from lt_monitor.logs.step_numbers import LOOK_BACK_BYTES
from lt_monitor.runs import run_loader

# From huggingface/optimum-neuron#658 and huggingface/transformers#14531.
WITHOUT_BARS = """\
{'loss': nan, 'learning_rate': 4.796747967479675e-05, 'epoch': 0.12}
{'loss': nan, 'learning_rate': 4.59349593495935e-05, 'epoch': 0.24}
{'loss': nan, 'learning_rate': 4.390243902439025e-05, 'epoch': 0.36}
"""
GLUED = (
    "  8%|█████████████                                   | 1999/24128 [1:52:09<20:27:23,  3.33s/it][2021-11-26 03:07:16,494]"
    " [INFO] [logging.py:69:log_dist] [Rank 0] step=2000, skipped=1995, lr=[0.001, 0.001], mom=[0.0, 0.0]\n"
    "[2021-11-26 03:07:16,494] [INFO] [timer.py:181:stop] 0/2000, SamplesPerSec=9.526738918021234\n"
    "{'loss': 0.0, 'learning_rate': 0.001, 'epoch': 0.08}                                              \n"
)


def bar(position: int, total: int = 230, name: str = "") -> str:
    return f"\r{name} {100 * position // total:2}%|####      | {position}/{total} [00:12<00:16,  8.10it/s]"


def figures(epoch: float, loss: float = 2.5) -> str:
    return f"\r                    \r{{'loss': {loss}, 'grad_norm': 1.1, 'learning_rate': 5e-05, 'epoch': {epoch}}}\n"


def numbers(text: str, *cuts: int) -> list[tuple[int, bool]]:
    """The number of each step, and whether it was counted, when the log was read in blocks that end at `cuts`."""
    raw = text.encode()
    state = None
    found = []
    for begin, end in zip((0, *cuts), (*cuts, len(raw)), strict=True):
        parser = LogParser(state)
        records = parser.parse(raw[begin:end], begin).records("log", "run")
        state = json.loads(json.dumps(parser.to_record()))
        found += [(record["step"], record.get("step_is_counted", False)) for record in records if record["kind"] == "step"]
    return found


def test_without_bars_they_are_counted() -> None:
    assert numbers(WITHOUT_BARS) == [(1, True), (2, True), (3, True)]
    assert numbers("no progress bars here\n" + WITHOUT_BARS, 22 + WITHOUT_BARS.index("\n") + 1) == [
        (1, True),
        (2, True),
        (3, True),
    ]


def test_the_last_frame_of_the_bar_counts() -> None:
    text = bar(0) + bar(9) + bar(10) + figures(0.04) + bar(10) + bar(20) + figures(0.08) + bar(20)
    assert numbers(text) == [(10, False), (20, False)]


def test_a_frame_in_a_line_of_something_else_counts_too() -> None:
    """It was drawn before the step was done: the bar is one behind DeepSpeed's line of the same step."""
    assert numbers(GLUED) == [(2000, False), (2000, False)]
    (run,) = run_loader.assemble(LogParser().parse(GLUED.encode(), 0).records("log", "run"))
    assert (run.steps.numbers.tolist(), run.steps.column("loss").tolist(), run.restarts) == ([2000], [0.0], 0)


def test_speed_and_total_are_those_of_the_bar() -> None:
    (record,) = LogParser().parse((bar(10) + figures(0.04)).encode(), 0).records("log", "run")
    assert (record["total_steps"], record["step_seconds"]) == (230, 1 / 8.1)


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-11-01 10:00:00,123 - INFO - ",
        "11/01/2026 10:00:00 - INFO - __main__ - ",
        "INFO:root:",
        "[INFO|trainer.py:2345] 2026-11-01 10:00:00,123 >> ",
        "2026-11-01 10:00:00.123 | INFO     | train:log:20 - ",
        "[2026-11-01 10:00:00] {trainer.py:20} INFO - ",
        "INFO trainer: ",
        "train.py --seed 3\t",
        "[2026-11-01T10:00:00.1Z] 8de2ca81 [rank=3] || ",
        "<6>",
        "Nov 29 12:00:06 node7 train: ",
        "1732881106.123456 ",
        "3:node07: ",
        "Rank 3: ",
        "\x1b[34m",
    ],
)
def test_bars_behind_a_prefix_of_a_logger_count(prefix: str) -> None:
    bars = [bar(position)[1:].removeprefix(" ") for position in (10, 20)]
    text = "".join(f"{prefix}{frame}\n{prefix}{figures(epoch)[22:]}" for epoch, frame in enumerate(bars, 1))
    assert numbers(text) == [(10, False), (20, False)]


def test_bars_behind_another_label_than_the_figures_do_not_count() -> None:
    text = "Map: 10%|#         | 10/100 [00:10<02:05, 1.39s/it]\nalpha\t" + figures(0.04)[22:]
    assert numbers(text) == [(1, True)]


def test_bars_of_other_loops_do_not_count() -> None:
    text = bar(2, 2, "Loading checkpoint shards: 100%|##|") + figures(0.04) + bar(1000, 1000, "Map:") + figures(0.08)
    assert numbers(text) == [(1, True), (2, True)]


def test_a_bar_that_has_not_moved_gives_no_number_twice() -> None:
    assert numbers(bar(10) + figures(0.04) + figures(0.05)) == [(10, False), (11, True)]


def test_a_bar_far_above_does_not_count() -> None:
    noise = "a line of something else\n" * (LOOK_BACK_BYTES // 20)
    text = bar(10) + "\n" + noise + figures(0.04)
    cuts = [index + 1 for index, character in enumerate(text) if character == "\n"]
    for cut in (cuts[0], cuts[len(cuts) // 2], cuts[-2]):
        assert numbers(text, cut) == [(1, True)]
    assert numbers(text, *cuts[:-1:9]) == [(1, True)]


def test_counting_begins_again_when_the_epoch_goes_back() -> None:
    assert numbers(WITHOUT_BARS + WITHOUT_BARS) == [(1, True), (2, True), (3, True)] * 2


def test_blocks_may_end_anywhere() -> None:
    text = bar(0) + bar(10) + figures(0.04) + bar(10) + "\n" + "noise\n" * 30 + bar(20) + figures(0.08) + figures(0.12)
    whole = numbers(text)
    assert whole == [(10, False), (20, False), (21, True)]
    raw = text.encode()
    cuts = [index + 1 for index, byte in enumerate(raw) if byte in b"\r\n"]
    for cut in cuts[:-1]:
        assert numbers(text, cut) == whole
    assert numbers(text, *cuts[:-1]) == whole


def test_a_validation_without_a_step_is_after_the_last_one() -> None:
    text = "{'eval_loss': 3.1, 'epoch': 0.0}\n" + bar(10) + figures(0.04) + "{'eval_loss': 2.9, 'epoch': 0.04}\n"
    records = LogParser().parse(text.encode(), 0).records("log", "run")
    assert [(record["kind"], record["step"], record["loss"]) for record in records] == [("step", 10, 2.5), ("eval", 10, 2.9)]


def test_the_validation_of_llmc_too() -> None:
    log = Path(__file__).parents[1] / "samples" / "trainers" / "llmc.log"
    raw = log.read_bytes() + b"val loss 3.301247\n"
    records = LogParser().parse(raw, 0).records("log", "run")
    assert [(record["step"], record["loss"]) for record in records if record["kind"] == "eval"] == [(63, 3.301247)]
