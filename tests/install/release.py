"""Build all distributions, check them, and run the README's pipeline from their wheels in an empty environment.

On a commit with a tag vX.Y.Z, CHANGELOG.md must begin with X.Y.Z and its date, and nothing may be uncommitted. Without a tag a
development version is built. What is to be published lies in dist/: `twine upload dist/*`.
"""

import datetime
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import resolution

ROOT = resolution.ROOT
DIST = ROOT / "dist"
# What the distributions are built with.
NEWEST: re.Pattern[str] = runpy.run_path(str(ROOT / "shared/hatch_build.py"))["NEWEST"]


class NotReleasable(Exception):
    """What the changelog, the tag and the checkout say does not fit together."""


def version(changelog: str, tags: list[str], changed: str) -> str:
    """What is built. `tags` are those of the commit, `changed` is what `git status --short` prints. Raises NotReleasable."""
    newest = NEWEST.search(changelog)
    if newest is None:
        raise NotReleasable("CHANGELOG.md: no heading like `## 1.2.3 (2026-12-31)`")
    number, date = newest.groups()
    tagged = [tag for tag in tags if re.match(r"[vV]?\d", tag)]
    if tagged == [] and date == "unreleased":
        return f"{number}.dev0"
    if tagged == []:
        raise NotReleasable(f"CHANGELOG.md: {number} has a date, and the commit has no tag v{number}")
    if tagged != [f"v{number}"]:
        raise NotReleasable(f"the commit has the tag {', '.join(tagged)}, CHANGELOG.md begins with {number}")
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        raise NotReleasable(f"CHANGELOG.md: {number} has a tag and is {date}; write its date") from None
    if changed:
        raise NotReleasable(f"not committed:\n{changed}")
    return number


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def run(*command: str | Path, **variables: str) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | variables)


def build() -> list[Path]:
    """The wheels, each made from its source distribution. What was in dist/ is deleted."""
    shutil.rmtree(DIST, ignore_errors=True)
    for path in resolution.DISTRIBUTIONS:
        # With the hatchling of constraints.txt instead of the newest one.
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, path)
    return sorted(DIST.glob("*.whl"))


def try_out(wheels: list[Path]) -> None:
    """Run the first block of README.md, which goes from text to a model, in an environment that has nothing but the wheels."""
    block = re.search(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    with tempfile.TemporaryDirectory() as directory:
        environment = Path(directory) / "environment"
        venv.create(environment, with_pip=True, symlinks=True)
        python = environment / "bin/python"
        run(python, "-m", "pip", "install", "--quiet", "-c", resolution.CONSTRAINTS, *wheels)
        (Path(directory) / "tests").symlink_to(ROOT / "tests")
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        script = f"cd {directory}\nset -euo pipefail\n{block[1]}\ntest -s pipeline/model/model.safetensors"
        run("bash", "-c", script, PATH=path, PYTHONPATH="")
        for tool in ("lt-preprocess", "lt-train", "lt-convert", "lt-monitor"):
            run(environment / "bin" / tool, "--version")


def main() -> int:
    try:
        number = version((ROOT / "CHANGELOG.md").read_text(), git("tag", "--points-at", "HEAD").split(), git("status", "--short"))
    except NotReleasable as problem:
        print(problem, file=sys.stderr)
        return 1
    wheels = build()
    assert [wheel.name.split("-")[1] for wheel in wheels] == [number] * len(resolution.DISTRIBUTIONS)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(DIST.iterdir()))
    run(sys.executable, "-m", "check_wheel_contents", *wheels)
    try_out(wheels)
    print(f"{number}: {len(wheels)} wheels in {DIST}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
