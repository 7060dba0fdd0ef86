"""The log lines: what is printed is read back, and lines that Megatron-LM printed over the years are read too."""

import datetime
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lt_shared.contracts import run_log
from lt_shared.contracts.run_log import CheckpointLoaded, CheckpointSaved, Evaluation, Step

EVENT_TYPES = (Step, Evaluation, CheckpointSaved, CheckpointLoaded)

TAIL = "number of skipped iterations:   0 | number of nan iterations:   0 |"
MEGATRON_LINES: list[tuple[str, run_log.Event]] = [
    (
        "  iteration       25/73242187 | consumed samples:           50 | elapsed time per iteration (ms): 87.0 | "
        "learning rate: 1.638E-08 | global batch size:     2 | lm loss: 1.086954E+01 | loss scale: 4294967296.0 | "
        f"grad norm: 0.000 | {TAIL}",
        Step(25, 73242187, 50, 0.087, None, 1.638e-08, 2, 10.86954, 4294967296.0, 0.0, 0, 0),
    ),
    (
        "iteration        1/  508626 | consumed samples:          288 | elapsed time per iteration (ms): 255940.5 | "
        "learning rate: 0.000E+00 | global batch size:   288 | loss scale: 4294967296.0 | "
        "number of skipped iterations:   1 | number of nan iterations:   0 |",
        Step(1, 508626, 288, 255.9405, None, 0.0, 288, None, 4294967296.0, None, 1, 0),
    ),
    (
        " [2024-08-21 10:19:42] iteration        4/   25000 | consumed samples:         4096 | "
        "elapsed time per iteration (ms): 270125.4 | throughput per GPU (TFLOP/s/GPU): 449.6 | "
        "iteration time: 270.125 s samples/sec: 3.8 | learning rate: 7.500000E-08 | global batch size:  1024 | "
        f"lm loss: 2.120380E+00 | loss scale: 1.0 | grad norm: 14.218 | {TAIL}",
        Step(
            *(4, 25000, 4096, 270.1254, 449.6, 7.5e-08, 1024, 2.12038, 1.0, 14.218, 0, 0),
            time=datetime.datetime(2024, 8, 21, 10, 19, 42),
        ),
    ),
    (
        "iteration      100/  300000 | consumed samples:         3200 | elapsed time per iteration (ms): 3738.6/3700.1 | "
        "learning rate: 6.000000E-05 | global batch size:    32 | lm loss: 7.968678E+00 | "
        "load_balancing_loss: 1.329517E+00 | mtp_1 loss: 7.925096E+00 | loss scale: 1.0 | grad norm: 1.040 | "
        f"{TAIL}",
        Step(100, 300000, 3200, 3.7386, None, 6e-05, 32, 7.968678, 1.0, 1.04, 0, 0),
    ),
    (
        " validation loss at iteration 14194 | lm loss value: 2.724416E+00 | lm loss PPL: 1.524774E+01 | ",
        Evaluation(14194, 2.724416, "validation"),
    ),
    (
        " validation loss at iteration 100 on test set | lm loss value: 2.5E+00 | lm loss PPL: 1.218249E+01 | ",
        Evaluation(100, 2.5, "test"),
    ),
    (
        "  [2026-01-16 07:40:00.000001] successfully saved checkpoint from iteration     845 to /fsx/checkpoints "
        "[ t 1/4, gtp_remat 1/1, p 1/2 ]",
        CheckpointSaved(845, "/fsx/checkpoints", datetime.datetime(2026, 1, 16, 7, 40, 0, 1)),
    ),
    ("  successfully saved checkpoint at iteration    5000 to /fsx/my run", CheckpointSaved(5000, "/fsx/my run")),
    (
        "  successfully loaded checkpoint from /fsx/checkpoints [ t 1/2, p 1/1 ] at iteration 60",
        CheckpointLoaded(60, "/fsx/checkpoints"),
    ),
]


@pytest.mark.parametrize(("line", "event"), MEGATRON_LINES)
def test_lines_of_megatron_are_one_kind_of_event(line: str, event: run_log.Event) -> None:
    assert run_log.parse(line) == event
    assert [event_type for event_type in EVENT_TYPES if event_type.parse(line) is not None] == [type(event)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "number of iterations: 5",
        "saving checkpoint at iteration     100 to /fsx/checkpoints in torch_dist format",
        " validation loss at the end of training for val data | lm loss value: 4.5E+00 | lm loss PPL: 9.7E+01 | ",
        " iteration       25/     100 | consumed samples:           50 | elapsed time per iter",
        "exiting program at iteration 100",
        "Processed 79000 documents (1298.6715286585202 docs/s, 16.763634765830606 MB/s).",
    ],
)
def test_other_lines_are_no_events(line: str) -> None:
    assert run_log.parse(line) is None


def test_an_unknown_peak_reads_not_available() -> None:
    assert " MFU (%): N/A |" in Step(1, 2, mfu=math.nan).format()
    assert " MFU (%): 41.50 | memory (GiB): 1.500 |" in Step(1, 2, mfu=0.415, memory_bytes=3 * 2**29).format()


def test_digits_that_are_no_date_cost_the_time_only() -> None:
    assert run_log.parse("[2026-99-99 10:00:00] iteration 1/ 2 | lm loss: 1.0E+00 |") == Step(1, 2, loss=1.0)


COUNTS = st.integers(0, 10**12)
POSITIVE = st.floats(1e-6, 1e9)
MICROSECONDS = st.datetimes(datetime.datetime(2000, 1, 1), datetime.datetime(2099, 12, 31))
STEPS = st.builds(
    Step,
    step=COUNTS,
    total_steps=COUNTS,
    consumed_samples=COUNTS,
    step_seconds=st.none() | st.floats(0, 1e6),
    tflops_per_gpu=st.none() | st.floats(0, 1e4),
    learning_rate=st.none() | st.floats(0, 1),
    global_batch_size=st.none() | COUNTS,
    loss=st.none() | POSITIVE | st.just(math.nan),
    loss_scale=st.none() | st.floats(1, 2**32),
    grad_norm=st.none() | st.floats(0, 1e6),
    skipped_steps=st.none() | COUNTS,
    nan_steps=st.none() | COUNTS,
    time=st.none() | MICROSECONDS,
    tokens_per_second_per_gpu=st.none() | st.floats(0, 1e6),
    mfu=st.none() | st.floats(0, 1) | st.just(math.nan),
    memory_bytes=st.none() | st.integers(0, 2**40),
    reserved_memory_bytes=st.none() | st.integers(0, 2**40),
)
PATHS = st.text("abcXYZ019/._- ", min_size=1).map(str.strip).filter(bool)


@given(STEPS)
def test_steps_are_read_back_as_precisely_as_they_are_printed(step: Step) -> None:
    read = Step.parse(step.format())
    assert read is not None
    exact = ("step", "total_steps", "consumed_samples", "global_batch_size", "skipped_steps", "nan_steps", "time")
    assert [getattr(read, name) for name in exact] == [getattr(step, name) for name in exact]
    for name, tolerance in (
        ("step_seconds", 6e-5),
        ("tflops_per_gpu", 0.06),
        ("learning_rate", 1e-6),
        ("loss_scale", 0.06),
        ("grad_norm", 6e-4),
        ("tokens_per_second_per_gpu", 0.06),
        ("memory_bytes", 6e-4 * 2**30),
        ("reserved_memory_bytes", 6e-4 * 2**30),
    ):
        assert getattr(read, name) == (None if getattr(step, name) is None else pytest.approx(getattr(step, name), abs=tolerance))
    known = step.mfu is not None and math.isfinite(step.mfu)
    assert read.mfu == (pytest.approx(step.mfu, abs=6e-5) if known else None)
    finite = step.loss is not None and math.isfinite(step.loss)
    assert read.loss == (pytest.approx(step.loss, rel=1e-6) if finite else None)


@given(COUNTS, st.floats(1e-3, 30), st.sampled_from(["validation", "test"]))
def test_evaluations_are_read_back(step: int, loss: float, split: str) -> None:
    assert run_log.parse(Evaluation(step, loss, split).format()) == Evaluation(step, pytest.approx(loss, rel=1e-6), split)


@given(COUNTS, PATHS, st.none() | MICROSECONDS, st.sampled_from([CheckpointSaved, CheckpointLoaded]))
def test_checkpoints_are_read_back(step: int, path: str, time: datetime.datetime | None, kind: type) -> None:
    assert run_log.parse(kind(step, path, time).format()) == kind(step, path, time)


@given(COUNTS, st.floats(0, 1e6), st.floats(0, 1e6))
def test_what_a_checkpoint_took_is_read_back(step: int, waited: float, seconds: float) -> None:
    match = run_log.CHECKPOINT_WAITED.search(run_log.format_checkpoint_waited(step, waited, seconds).encode())
    assert match is not None and int(match["step"]) == step
    assert [float(match[name]) for name in ("waited", "seconds")] == pytest.approx([waited, seconds], abs=0.006)


@given(COUNTS, st.sampled_from(["SIGTERM", "--exit-interval"]), MICROSECONDS)
def test_why_training_ended_is_read_back(step: int, reason: str, time: datetime.datetime) -> None:
    match = run_log.ENDED.search(run_log.format_ended(step, reason, "the same command continues", time).encode())
    assert match is not None and (int(match["step"]), match["reason"].decode()) == (step, reason)


@given(COUNTS, POSITIVE, POSITIVE)
def test_loss_spikes_are_read_back(step: int, loss: float, mean: float) -> None:
    match = run_log.LOSS_SPIKE.search(run_log.format_loss_spike(step, loss, mean, 50).encode())
    assert match is not None and int(match["step"]) == step
    assert float(match["loss"]) == pytest.approx(loss, abs=6e-5)


def test_lines_read_as_they_always_did() -> None:
    time = datetime.datetime(2026, 11, 21, 10, 0, 0, 123456)
    assert run_log.format_checkpoint_waited(300, 0.41, 7.25) == "  checkpoint of iteration 300: training waited 0.41 s of 7.25 s"
    assert run_log.format_ended(318, "SIGUSR1", "the same command continues", time) == (
        "  [2026-11-21 10:00:00.123456] ended by SIGUSR1 at iteration 318; the same command continues"
    )
    assert run_log.format_loss_spike(77, 9.1234, 3.2, 50) == (
        " loss spike at iteration 77: 9.1234, mean of the 50 steps before it 3.2000"
    )


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,60}", fullmatch=True), st.text("abc0/._- ").map(str.strip)))
def test_arguments_are_read_back(arguments: dict[str, str]) -> None:
    lines = ["noise", *run_log.format_arguments(arguments), "  after ....... 1"]
    assert run_log.parse_arguments(lines) == arguments


def test_arguments_without_an_end_are_not_complete() -> None:
    assert run_log.parse_arguments(run_log.format_arguments({"seq_length": 8})[:-1]) is None


def test_losses_of_a_blends_datasets_are_pairs_of_their_own() -> None:
    step = Step(5, 9, loss=2.5, loss_scale=1.0, source_losses={"web/part": 2.25, "code@2": 3.0}, skipped_steps=0, nan_steps=0)
    assert (
        " lm loss: 2.500000E+00 | loss on web/part: 2.250000E+00 | loss on code@2: 3.000000E+00 | loss scale: 1.0 |"
        in step.format()
    )
    assert Step.parse(step.format()) == step


def test_the_first_validation_set_is_megatrons_line() -> None:
    first, second = Evaluation(8, 2.5, "validation", "web"), Evaluation(8, 2.75, "validation", "code", is_first=False)
    assert first.format().startswith(Evaluation(8, 2.5).format())
    assert second.format().startswith(" validation-code loss at iteration 8 on validation set | lm loss value: 2.750000E+00 |")
    assert [run_log.parse(each.format()) for each in (first, second)] == [first, second]
    assert (first.part, second.part) == ("validation", "validation-code")


@pytest.mark.parametrize(("suffix", "part"), [("", "validation"), ("-0", "validation"), ("-1", "validation-1")])
def test_megatrons_several_validation_sets_are_told_apart(suffix: str, part: str) -> None:
    """As evaluate_and_print_results of Megatron-LM prints them with --multiple-validation-sets."""
    line = f" validation{suffix} loss at iteration 100 on validation set | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | "
    parsed = Evaluation.parse(line)
    assert parsed is not None
    assert (parsed.step, parsed.loss, parsed.part) == (100, 2.5, part)
