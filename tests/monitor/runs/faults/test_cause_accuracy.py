import collections

import cause_accuracy
import pytest
from cause_accuracy import CORPUS, DECISIONS, STATES, Label, Verdict, figures, judge, part_of, read_part

from lt_monitor.runs.faults.advice import ADVICE

MAXIMUM_LOGS_OF_A_REPOSITORY = 8
# Percent right; raise them as the figures rise, and never lower them.
LOWEST = {"development": {"causes": 98.0, "decisions": 99.5}, "test": {"causes": 97.0, "decisions": 99.0}}


@pytest.mark.parametrize("part", ["development", "test"])
def test_labels_and_logs_fit(part):
    repositories = collections.Counter()
    for label, text in read_part(CORPUS, part):
        lines = text.splitlines()
        assert 10 <= len(lines) <= 80, label.name
        assert part_of(label.repository) == part, label.name
        assert label.state in STATES and set(label.decisions) <= set(DECISIONS.values()), label.name
        assert set(label.causes) <= {*ADVICE, "none"}, label.name
        assert any(label.evidence in line for line in lines), label.name
        assert (label.evidence == "") == (label.causes == ("none",)), label.name
        repositories[label.repository] += 1
    assert all(count <= MAXIMUM_LOGS_OF_A_REPOSITORY for count in repositories.values())


@pytest.mark.parametrize("part", LOWEST)
def test_figures_do_not_fall(part):
    values = figures(judge(read_part(CORPUS, part)))
    assert values["false_alarms"] == 0
    assert all(values[key] >= lowest for key, lowest in LOWEST[part].items()), values


def _verdict(causes: tuple[str, ...], decisions: tuple[str, ...], cause: str, decision: str) -> Verdict:
    label = Label("log", "a/b#1", "failed", causes, decisions, "", (), (), "")
    return Verdict(label, cause, decision, "", (), ())


def test_figures_count_defensible_causes_and_false_alarms():
    values = figures(
        [
            _verdict(("nan",), ("stop",), "nan", "stop"),
            _verdict(("nan", "traceback"), ("stop",), "traceback", "again"),
            _verdict(("ecc",), ("other-node",), "none", "none"),
            _verdict(("none",), ("none",), "exit", "stop"),
            _verdict(("none",), ("none",), "none", "none"),
        ]
    )
    assert (values["causes"], values["decisions"], values["false_alarms"], values["missed"]) == (66.7, 40.0, 1, 1)
    assert values["by_cause"]["nan"] == {"logs": 2, "reported": 1, "precision": 100.0, "recall": 100.0}
    assert values["by_cause"]["exit"] == {"logs": 0, "reported": 1, "precision": 0.0, "recall": None}
    assert values["by_decision"]["stop"] == {"logs": 2, "reported": 2, "precision": 50.0, "recall": 50.0}
    assert "ecc" in cause_accuracy.table(values)
