"""The rules file."""

from pathlib import Path

import pytest

from lt_monitor.alerts import thresholds
from lt_shared.console import BadConfig, NoInput


def read(tmp_path: Path, text: str) -> thresholds.Thresholds:
    (tmp_path / "rules.toml").write_text(text)
    return thresholds.read(str(tmp_path / "rules.toml"))


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    found = read(tmp_path, '[hang]\nminimum_seconds = 900\n[xid]\nseverity = "warning"\n[traceback]\nenabled = false\n')
    assert found.of("hang", "minimum_seconds") == 900
    assert found.of("hang", "step_factor") == 10
    assert found.severity("xid", "critical") == "warning"
    assert (found.is_enabled("traceback"), found.is_enabled("xid")) == (False, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[hang", "not TOML"),
        ("[hangs]\n", "'hangs' is not a rule"),
        ("hang = 3\n", "'hang' is not a rule"),
        ("[hang]\nminimum = 3\n", "is not a threshold; there are minimum_seconds"),
        ("[hang]\nminimum_seconds = 'x'\n", "is not a number"),
        ("[hang]\nminimum_seconds = -1\n", "is not a number above 0"),
        ("[hang]\nminimum_seconds = nan\n", "is not a number above 0"),
        ("[hang]\nminimum_seconds = true\n", "is not a number"),
        ("[xid]\nseverity = 'bad'\n", "is none of critical, warning, info"),
        ("[xid]\nenabled = 1\n", "is not true or false"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadConfig, match=said) as raised:
        read(tmp_path, text)
    assert raised.value.hint


def test_no_file() -> None:
    with pytest.raises(NoInput, match="no such file") as raised:
        thresholds.read("/no/such/rules.toml")
    assert raised.value.hint == "leave --rules out, or use --rules default, for the built-in ones"


def test_a_wrong_threshold_is_told_the_right_ones(tmp_path: Path) -> None:
    with pytest.raises(BadConfig) as raised:
        read(tmp_path, "[straggling]\nratios = 2\n")
    assert (
        raised.value.hint
        == '[straggling] may have ratio = 1.2, lines = 50, clock_ratio = 0.8, enabled = true, severity = "warning"'
    )


def test_the_manual_names_every_threshold() -> None:
    manual = (Path(__file__).parents[3] / "docs/guides/alerts.md").read_text()
    for rule, values in thresholds.DEFAULTS.items():
        for name, value in values.items():
            assert f"`{rule}`" in manual
            assert f"`{name}` {value:g}" in " ".join(manual.split()), (rule, name)
