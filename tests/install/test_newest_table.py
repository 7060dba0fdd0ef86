"""`nox -s newest` sums the tests up by package."""

from pathlib import Path

import newest_versions
import pytest
import resolution

REPORT = """<testsuites><testsuite>
<testcase file="tests/preprocess/tokenizers/test_loading.py" name="a"/>
<testcase file="tests/preprocess/tokenizers/test_loading.py" name="b"><failure/></testcase>
<testcase file="tests/convert/tokenizers/test_vocabulary.py" name="c"><skipped/></testcase>
<testcase file="tests/convert/tokenizers/test_vocabulary.py" name="d"/>
<testcase file="tests/shared/console/test_errors.py" name="e"><error/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("package", "result"), [("tokenizers", "1 failed, 2 passed"), ("transformers", "1 passed"), ("tensorboard", "not run")]
)
def test_result(package: str, result: str, tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    counts = newest_versions.outcomes(tmp_path / "report.xml")
    assert newest_versions.result(newest_versions.TESTS[package], counts) == result


def test_all_tests_exist() -> None:
    paths = {path for paths in newest_versions.TESTS.values() for path in paths}
    assert [path for path in paths if not (resolution.ROOT / path).exists()] == []


def test_every_requirement_has_a_lower_bound() -> None:
    """test_lowest_versions installs them, extras included."""
    requirements = newest_versions.requirements()
    assert len(requirements) > 25
    assert [str(one) for one in requirements if not {bound.operator for bound in one.specifier} & {">=", "=="}] == []


@pytest.mark.parametrize("name", ["numpy", "torch", "click", "tokenizers", "transformers", "megatron-core"])
def test_the_next_major_is_not_taken_untried(name: str) -> None:
    """Their interfaces changed with a major version before, or are called where they promise nothing."""
    bounds = [one for one in newest_versions.requirements() if one.name == name]
    assert bounds and all("<" in {bound.operator for bound in one.specifier} for one in bounds)
