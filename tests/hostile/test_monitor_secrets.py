"""Programs print their arguments and the requests that failed. Secrets in that stay out of all that lt-monitor makes."""

import json
import subprocess
from pathlib import Path

import pytest
from monitor_command import monitor

SECRET = "Zx9" * 12
PLACES = [
    f"OSError: https://user:{SECRET}@host/repo not found",
    f"HTTPError: 401 for url: https://huggingface.co/x with Authorization: Bearer {SECRET}",
    f"ValueError: invalid token {'h' + 'f_'}{SECRET}",
    f"RuntimeError: WANDB_API_KEY={SECRET} is not valid",
    f"ClientError: {'AS' + 'IA'}ABCDEFGHIJKLMNOP:{SECRET}abcd expired",
    f'RuntimeError: {{"name": "WANDB_API_KEY", "value": "{SECRET}"}}',
    f"RuntimeError: - name: X_TOKEN value: {SECRET}",
    f'RuntimeError: "{{\\"api_key\\": \\"{SECRET}\\"}}"',
    f'RuntimeError: x --password "ab\\"{SECRET}"',
    f"RuntimeError: curl -u 'bob:pass {SECRET}'",
    f"RuntimeError: api_key: {SECRET}",
]
COMMANDS = [
    ["scrape"], ["alert"], ["alert", "--json", "--state", "state"], ["summarize"], ["summarize", "--json"], ["runs", "--json"],
    ["prom"], ["goodput", "--json"], ["plot", "-o", "report.html"],
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_no_secret_of_a_log_is_repeated(place: str, tmp_path: Path) -> None:
    start = {"v": 1, "kind": "start", "arguments": {"load": place, "world_size": 8, "hf_token": SECRET}}
    steps = [{"v": 1, "kind": "step", "step": step, "loss": 2.5} for step in range(1, 9)]
    fault = {"v": 1, "kind": "fault", "fault": "traceback", "cause": "root", "severity": "critical", "message": place}
    lines = [json.dumps(record) for record in (start, *steps, fault)]
    lines += ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>', place]
    (tmp_path / "run.log").write_text("\n".join(lines) + "\n")
    for command in COMMANDS:
        done = subprocess.run(monitor(*command, "run.log"), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (0, 3), (command, done.stderr)
        assert SECRET not in done.stdout + done.stderr, command
    written = [path for path in tmp_path.iterdir() if path.name != "run.log"]
    assert {path.name for path in written} == {"state", "report.html"}
    assert all(SECRET not in path.read_text() for path in written)
    assert "(not shown)" in (tmp_path / "state").read_text()
