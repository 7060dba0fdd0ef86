"""Take the pictures of docs/images from a run of the tutorial: `nox -s screenshots`.

Runs the shell blocks of tutorial.md in a temporary directory, then photographs the HTML report with Chromium, draws the loss
with lt-monitor plot, and exports what lt-monitor watch shows. The pictures are committed, so that pages show without a build.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from lt_monitor.runs import run_loader
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import watch

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs/images"
CHROMIUM = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
MAXIMUM_BYTES = 150_000
TERMINAL_COLUMNS, TERMINAL_LINES = 100, 12


def main() -> None:
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if browser is None:
        sys.exit(f"docs/screenshots.py: none of {', '.join(CHROMIUM)} is installed")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        Path("tests").symlink_to(ROOT / "tests")
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        for block in re.findall(r"^```sh\n(.*?)^```$", (ROOT / "docs/tutorial.md").read_text(), re.MULTILINE | re.DOTALL):
            subprocess.run(["bash", "-c", f"set -euo pipefail\n{block}"], check=True)
        shutil.copy("tutorial/loss.png", IMAGES / "loss.png")
        photograph(browser, Path("tutorial/report.html").resolve(), IMAGES / "report.png")
        export_watch(Path("tutorial/run"), IMAGES / "watch.svg")
    for image in IMAGES.iterdir():
        if image.stat().st_size > MAXIMUM_BYTES:
            sys.exit(f"docs/screenshots.py: {image.name} has {image.stat().st_size:,} bytes, {MAXIMUM_BYTES:,} is the most")


def photograph(browser: str, page: Path, image: Path) -> None:
    """Write a PNG of `page`. Root needs the browser without its sandbox; the page is our own."""
    options = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,1000", f"--screenshot={image}"]
    subprocess.run([browser, *options, page.as_uri()], check=True)


def export_watch(run_directory: Path, image: Path) -> None:
    """Write an SVG of the terminal that lt-monitor watch fills, at the time of the run's last line."""
    (run,) = run_loader.read([str(run_directory)])
    view = watch.View.of(run, str(run_directory), RunFacts())
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=TERMINAL_COLUMNS, height=TERMINAL_LINES, file=nowhere, force_terminal=True)
        console.print(watch.render([view], view.updated or 0.0, TERMINAL_COLUMNS, TERMINAL_LINES))
        drawing = console.export_svg(title="lt-monitor watch")
    # The fonts would come from the network. Without them the terminal's text has the reader's monospace font.
    image.write_text(re.sub(r"@font-face \{.*?\n    \}\n", "", drawing, flags=re.DOTALL))


if __name__ == "__main__":
    main()
