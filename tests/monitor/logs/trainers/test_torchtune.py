"""torchtune's bar and the lines of its loggers."""

import pytest

from lt_monitor.logs.log_parser import LogParser

BAR = "1|100|Loss: 0.14064782655239105:  99%|█████████▉| 100/101 [1:53:29<01:09, 69.90s/it]"
LINE = (
    b"Step 7 | loss:2.5 lr:2e-05 tokens_per_second_per_gpu:812.25 peak_memory_active:11.5 peak_memory_alloc:11.0 grad_norm:1.5 \n"
)


@pytest.mark.parametrize("end", ["\n", "\r", "INFO:torchtune.utils._logging:Saving checkpoint. This may take some time.\n"])
def test_the_bar(end: str) -> None:
    (record,) = LogParser().parse((BAR + end).encode(), 0).records("a.log", "a")
    assert {key: value for key, value in record.items() if key not in ("v", "run", "src")} == {
        "kind": "step",
        "step": 100,
        "loss": 0.14064782655239105,
        "epoch": 0,
        "step_seconds": 69.9,
    }


def test_a_fault_behind_the_bar() -> None:
    text = (BAR + "ValueError: bad batch\n").encode()
    assert [record["kind"] for record in LogParser().parse(text, 0).records("a.log", "a")] == ["step", "fault"]


def test_a_bar_without_a_speed_and_a_second_epoch() -> None:
    text = b"2|102|Loss: nan:   1%|          | 1/101 [00:00<?, ?it/s]\n"
    (record,) = LogParser().parse(text, 0).records("a.log", "a")
    assert (record["step"], record["epoch"], record["loss"], "step_seconds" in record) == (102, 1, None, False)


def test_the_line_of_a_logger() -> None:
    (record,) = LogParser().parse(LINE, 0).records("a.log", "a")
    assert {key: value for key, value in record.items() if key not in ("v", "run", "src")} == {
        "kind": "step",
        "step": 7,
        "loss": 2.5,
        "learning_rate": 2e-05,
        "tokens_per_second_per_gpu": 812.25,
        "memory_bytes": 11 * 2**30,
        "grad_norm": 1.5,
        "metrics": {"peak_memory_active": 11.5},
    }


def test_a_line_without_a_loss_is_no_step() -> None:
    assert LogParser().parse(b"Step 7 | val_accuracy:0.5 \n", 0).items == []
