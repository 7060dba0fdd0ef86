"""A release has one version: that of its tag and of the changelog."""

import pytest
import release

RELEASED = "# Changes\n\n## 1.2.3 (2026-12-31)\n\n## 1.2.2 (2026-12-01)\n"
OPEN = RELEASED.replace("2026-12-31", "unreleased")


@pytest.mark.parametrize(
    ("changelog", "tags", "number"),
    [(OPEN, [], "1.2.3.dev0"), (OPEN, ["tried"], "1.2.3.dev0"), (RELEASED, ["v1.2.3"], "1.2.3")],
)
def test_version(changelog: str, tags: list[str], number: str) -> None:
    assert release.version(changelog, tags, "") == number


@pytest.mark.parametrize(
    ("changelog", "tags", "changed", "reason"),
    [
        (RELEASED, ["v1.2.4"], "", "tag v1.2.4, CHANGELOG.md begins with 1.2.3"),
        (RELEASED, ["v1.2.2", "v1.2.3"], "", "tag v1.2.2, v1.2.3, CHANGELOG.md begins with 1.2.3"),
        (OPEN, ["v1.2.3"], "", "1.2.3 has a tag and is unreleased"),
        (RELEASED, [], "", "has a date, and the commit has no tag v1.2.3"),
        *((RELEASED, [tag], "", f"the tag {tag}, ") for tag in ("1.2.3", "V1.2.3", "v1.2", "v1.2.3rc1")),
        (RELEASED.replace("12-31", "99-99"), ["v1.2.3"], "", "is 2026-99-99; write its date"),
        (RELEASED, ["v1.2.3"], " M README.md\n", "not committed:\n M README.md"),
        ("# Changes\n", [], "", "no heading"),
    ],
)
def test_what_is_not_released(changelog: str, tags: list[str], changed: str, reason: str) -> None:
    with pytest.raises(release.NotReleasable, match=reason):
        release.version(changelog, tags, changed)


def test_the_changelog_says_what_is_installed() -> None:
    from importlib import metadata

    newest = release.NEWEST.search((release.ROOT / "CHANGELOG.md").read_text())
    assert newest is not None
    assert metadata.version("lt-shared") == newest[1] + (".dev0" if newest[2] == "unreleased" else "")
