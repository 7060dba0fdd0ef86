"""The report in a real browser: headless Chromium, started once and driven through its debugging pipe.

The screenshots are left in pytest's temporary directory, for looking at them.
"""

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import run_of, run_of_columns
from matplotlib import image

from lt_monitor.events.steps import Steps
from lt_monitor.runs import run_loader
from lt_monitor.runs.attempts import Run
from lt_monitor.runs.speed import RunFacts
from lt_monitor.views import html_report
from lt_monitor.views.plot_options import PlotOptions

LOGS = Path(__file__).parents[1] / "samples"
# Debian's names and those of Google's own packages.
CHROMIUM = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
PHONE, DESKTOP = (390, 844), (1280, 900)
SECONDS = 60
# The browser reads from descriptor 3 and writes to 4.
ON_3_AND_4 = """
import os, sys
reading, writing = (os.dup2(int(number), 100 + index) for index, number in enumerate(sys.argv[1:3]))
os.dup2(reading, 3)
os.dup2(writing, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
# What is wider than the screen. Curves are: they are cut off by their panel.
OUTSIDE = """
[...document.querySelectorAll('main :not(.wide *, polyline, rect)')]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML).slice(0, 3)
"""
BOX = "(r => [r.left, r.top, r.width])(document.getElementById('plot-loss').getBoundingClientRect())"
TOUCH_FAULT = """
const box = document.querySelector('.fault-mark').getBoundingClientRect();
document.getElementById('plot-loss').dispatchEvent(new PointerEvent('pointermove', {clientX: box.left + 6, clientY: box.top}));
"""


class Chromium:
    """One page of a headless browser. `messages` are what it told unasked: requests, exceptions, what was logged."""

    def __init__(self, program: str, profile: Path):
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        options = ["--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        wrapped = [sys.executable, "-c", ON_3_AND_4, str(from_us), str(to_us), program, "--headless", *options, "about:blank"]
        silent: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(wrapped, pass_fds=(from_us, to_us), **silent)
        os.close(from_us)
        os.close(to_us)
        self._pending = b""
        self._count = 0
        self._session: str | None = None
        self.messages: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        os.write(self._to, json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        while (answer := self._read()).get("id") != self._count:
            self.messages.append(answer)
        assert "error" not in answer, answer
        return dict(answer["result"])

    def open(self, path: Path, size: tuple[int, int], dark: bool = False) -> None:
        width, height = size
        phone = size == PHONE
        self.messages.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while not any(message.get("method") == "Page.loadEventFired" for message in self.messages):
            self.messages.append(self._read())

    def evaluate(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def move(self, kind: str, x: float, y: float) -> None:
        button = {} if kind == "mouseMoved" else {"button": "left", "buttons": 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def screenshot(self, file: Path) -> np.ndarray:
        """The whole page as an array of shape (height, width, 4), also written to `file`."""
        content = base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
        file.write_bytes(content)
        return np.asarray(image.imread(io.BytesIO(content), format="png"))

    def close(self) -> None:
        self._session = None
        self.call("Browser.close")
        self._process.wait(SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self._pending:
            received = os.read(self._from, 1 << 20)
            assert received, "the browser ended"
            assert time.monotonic() < end, "the browser does not answer"
            self._pending += received
        message, _, self._pending = self._pending.partition(b"\0")
        return dict(json.loads(message))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(CHROMIUM)} is installed; nox -s tests installs the first of them where it can")
    chromium = Chromium(program, tmp_path_factory.mktemp("profile"))
    try:
        yield chromium
        chromium.close()
    finally:
        chromium.kill()


def read(*names: str) -> list[Run]:
    return run_loader.read([str(LOGS / name) for name in names])


def write(path: Path, runs: list[Run], names: list[str]) -> Path:
    path.write_text(
        html_report.build(
            runs,
            names,
            RunFacts(gpu="NVIDIA H100 80GB HBM3"),
            PlotOptions(references=(("unigram", 7.6),) if len(runs) > 1 else ()),
        )
    )
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    story = read("story.jsonl")
    several = (story + read("megatron_new.log", "megatron_old.log")) * 3
    long_names = [f"/fsx/users/somebody/experiments/llama3-8b-on-everything-we-have-{number}/train" for number in range(9)]
    return {
        "story": write(folder / "story.html", story, ["llama3-8b-web"]),
        "several": write(folder / "several.html", several, long_names),
    }


def problems(browser: Chromium) -> list[object]:
    kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed")
    return [message for message in browser.messages if message.get("method") in kinds]


def requests(browser: Chromium) -> list[str]:
    sent = (message for message in browser.messages if message.get("method") == "Network.requestWillBeSent")
    return [message["params"]["request"]["url"] for message in sent]


@pytest.mark.parametrize(
    ("name", "size", "dark"),
    [("story", PHONE, False), ("story", DESKTOP, True), ("several", PHONE, True), ("several", DESKTOP, False)],
    ids=["phone", "desktop-dark", "several-phone-dark", "several-desktop"],
)
def test_the_page_fits_and_shows_its_curves(
    name: str, size: tuple[int, int], dark: bool, browser: Chromium, pages: dict[str, Path], tmp_path: Path
) -> None:
    browser.open(pages[name], size, dark)
    browser.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.evaluate("document.documentElement.scrollWidth") == size[0]
    assert browser.evaluate(OUTSIDE) == []
    parts = (".smooth", ".fault-mark", ".again")
    counts = {part: browser.evaluate(f"document.querySelectorAll('.plot {part}').length") for part in parts}
    assert counts[".smooth"] == {"story": 3, "several": 27}[name]
    assert counts[".fault-mark"] >= 3
    assert counts[".again"] >= 6
    texts = browser.evaluate("[...document.querySelectorAll('body *')].map(e => parseFloat(getComputedStyle(e).fontSize))")
    assert min(texts) >= 11
    picture = browser.screenshot(tmp_path / f"{name}-{size[0]}-{'dark' if dark else 'light'}.png")[..., :3]
    background = picture[2, 2].mean()
    assert background < 0.15 if dark else background > 0.9
    assert len(np.unique((picture[::3, ::3] * 255).astype(np.int64) @ [1, 256, 65536])) > 50
    assert problems(browser) == []
    assert requests(browser) == [pages[name].as_uri()]


def test_pointing_reads_the_curves_and_dragging_zooms(browser: Chromium, pages: dict[str, Path]) -> None:
    browser.open(pages["story"], DESKTOP)
    left, top, width = browser.evaluate(BOX)
    x = [left + 52 + (width - 62) * share for share in (0, 0.25, 0.75, (150 - 2) / 398)]
    browser.move("mouseMoved", x[3], top + 60)
    readout = browser.evaluate("document.getElementById('readout').innerText")
    assert readout.startswith("step 150")
    assert "loss 2.1" in readout
    assert "attempt 2 resumed from step 150, 22 steps repeated" in readout
    assert browser.evaluate("document.querySelectorAll('.cross').length") == 3
    ticks = "[...document.querySelectorAll('#plot-tokens_per_second text')].map(e => e.textContent)"
    assert "100" in browser.evaluate(ticks)
    browser.move("mousePressed", x[1], top + 60)
    browser.move("mouseMoved", x[2], top + 60)
    assert browser.evaluate("document.querySelectorAll('.select').length") == 3
    browser.move("mouseReleased", x[2], top + 60)
    zoomed = browser.evaluate(ticks)
    assert "100" not in zoomed
    assert "200" in zoomed
    browser.evaluate("document.querySelector('[data-share=\"1\"]').click()")
    assert "100" in browser.evaluate(ticks)
    browser.evaluate("document.querySelector('[data-share=\"0.1\"]').click()")
    assert browser.evaluate("document.querySelectorAll('[aria-pressed=true]').length") == 1
    assert "400" in browser.evaluate(ticks)
    assert problems(browser) == []


def test_hostile_text_does_not_run(browser: Chromium, tmp_path: Path) -> None:
    script = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    (run,) = read("story.jsonl")
    for event in run.of_kind("fault"):
        event["message"] = event["fault"] = script
    page = tmp_path / "hostile.html"
    names = [f"</script {script}", f"</script>{script}"]
    page.write_text(html_report.build([run, run], names, RunFacts(), PlotOptions(references=((script, 2.0),))))
    browser.open(page, PHONE)
    readout = "document.getElementById('readout').innerText"
    assert browser.evaluate("[...document.querySelectorAll('.runs button')].map(e => e.innerText)") == names
    browser.evaluate(TOUCH_FAULT)
    assert f"{names[0]}: {script}" in browser.evaluate(readout)
    assert "<script>" in browser.evaluate("document.getElementById('plot-loss').textContent")
    assert browser.evaluate("[typeof window.hacked, document.images.length, document.scripts.length]") == ["undefined", 0, 2]
    assert problems(browser) == []


def test_the_security_policy_stops_a_script_that_slipped_through(
    browser: Chromium, pages: dict[str, Path], tmp_path: Path
) -> None:
    page = tmp_path / "slipped.html"
    page.write_text(
        pages["story"].read_text().replace("<main>", "<main><script>window.hacked=1</script><img src=x onerror=hacked=1>")
    )
    browser.open(page, DESKTOP)
    assert browser.evaluate("typeof window.hacked") == "undefined"
    assert browser.evaluate("document.querySelectorAll('.smooth').length") > 0


def test_no_smoothed_line_rises_before_its_event(browser: Chromium, tmp_path: Path) -> None:
    numbers = np.arange(1, 100_001)
    steps = Steps(numbers, {"loss": np.where(numbers >= 40_040, 9.0, 2.0)}, np.full(len(numbers), np.nan))
    page = tmp_path / "event.html"
    run = run_of_columns(steps)
    page.write_text(html_report.build([run], ["a"], RunFacts(), PlotOptions(smooth_steps=1)))
    browser.open(page, DESKTOP)
    points = browser.evaluate("document.querySelector('#plot-loss .smooth').getAttribute('points')")
    drawn = [tuple(map(float, point.split(","))) for point in points.split()]
    level = drawn[0][1]
    at = browser.evaluate("(p => [52, p.clientWidth - 62])(document.getElementById('plot-loss'))")
    last_level = max(x for x, y in drawn if y == level)
    assert last_level >= at[0] + at[1] * 0.40039 - 0.1
    assert problems(browser) == []


def test_metrics_of_any_name_are_drawn(browser: Chromium, tmp_path: Path) -> None:
    name = "<img src=x onerror='window.hacked=1'>\"'"
    records = [{"step": step, "loss": 2.0, "metrics": {name: 1.0 + step}} for step in range(1, 50)]
    run = run_of(*records)
    page = tmp_path / "metrics.html"
    page.write_text(html_report.build([run], ["a"], RunFacts(), PlotOptions(metrics=(name, "loss"))))
    browser.open(page, DESKTOP)
    assert browser.evaluate("document.querySelectorAll('.plot .smooth').length") == 2
    assert name in browser.evaluate("document.querySelector('.panel h3').textContent")
    assert browser.evaluate("[typeof window.hacked, document.images.length]") == ["undefined", 0]
    assert problems(browser) == []


def test_runs_are_hidden_and_shown_again(browser: Chromium, tmp_path: Path) -> None:
    def of(name: str, level: float, fault: bool = False) -> Run:
        records = [{"step": step, "loss": level + 0.01 * step} for step in range(1, 101)]
        event = {"kind": "fault", "fault": "exit", "cause": "root", "severity": "critical", "message": "x", "step": 50}
        return run_of(*records, name=name, events=[event] if fault else [])

    page = tmp_path / "toggles.html"
    names = ["low", "high"]
    page.write_text(html_report.build([of("low", 1.0), of("high", 100.0, fault=True)], names, RunFacts(), PlotOptions()))
    browser.open(page, DESKTOP)
    curves = "[...document.querySelectorAll('#plot-loss g:has(> .smooth)')].map(e => e.getAttribute('class'))"
    faults = "document.querySelectorAll('.fault-mark').length - document.querySelectorAll('.legend .fault-mark').length"
    left, top, _ = browser.evaluate(BOX)
    assert [browser.evaluate(one) for one in (curves, faults)] == [["c0", "c1"], 1]
    browser.evaluate("document.querySelector('[data-run=\"1\"]').click()")
    assert [browser.evaluate(one) for one in (curves, faults)] == [["c0"], 0]
    ticks = "[...document.querySelectorAll('#plot-loss .grid + text')].map(e => parseFloat(e.textContent))"
    assert max(browser.evaluate(ticks)) < 3
    browser.move("mouseMoved", left + 300, top + 60)
    readout = browser.evaluate("document.getElementById('readout').innerText")
    assert "low" in readout
    assert "high" not in readout
    assert browser.evaluate("document.querySelector('[data-run=\"1\"]').getAttribute('aria-pressed')") == "false"
    browser.evaluate("document.querySelector('[data-run=\"0\"]').click()")
    assert browser.evaluate(curves) == []
    browser.evaluate("for (const one of document.querySelectorAll('[data-run]')) one.click()")
    assert [browser.evaluate(one) for one in (curves, faults)] == [["c0", "c1"], 1]
    assert max(browser.evaluate(ticks)) > 50
    assert problems(browser) == []
    assert requests(browser) == [page.as_uri()]
