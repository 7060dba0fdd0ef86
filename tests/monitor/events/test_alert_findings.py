"""What is printed of text that came from a log."""

from hypothesis import given
from hypothesis import strategies as st

from lt_monitor.events.alert_findings import Finding, duration, worst


@given(st.text())
def test_a_line_is_one_line_that_a_terminal_only_prints(text: str) -> None:
    line = Finding("xid", "critical", text, "key", text).line()
    assert line.isprintable()
    assert len(line) <= 1100


def test_records_come_back() -> None:
    finding = Finding("xid", "critical", "r", "key", "said", {"xid": 79})
    assert Finding.from_record(finding.to_record()) == finding


def test_the_worst_of_severities() -> None:
    assert [worst([]), worst(["info", "warning"]), worst(["warning", "critical"])] == ["info", "warning", "critical"]


def test_durations_as_people_say_them() -> None:
    assert [duration(seconds) for seconds in (45, 119, 600, 12_600, 180_000)] == ["45 s", "119 s", "10 min", "3.5 h", "2.1 d"]
