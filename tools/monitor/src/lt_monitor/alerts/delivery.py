"""Telling others about findings: a command, a webhook, and a heartbeat that says that somebody looked.

Nothing of a finding reaches a shell or an argument list: a command gets JSON on its standard input, a webhook a JSON body. A
finding that could not be delivered is kept and tried again in the next pass.
"""

import http.client
import json
import os
import queue
import shlex
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence

from lt_monitor.alerts import chat_messages
from lt_monitor.events.alert_findings import Finding
from lt_shared.console import UsageError
from lt_shared.files import storage

TOKEN_VARIABLE = "LT_MONITOR_WEBHOOK_TOKEN"
# URLs of webhooks are often secrets.
SECRET_VARIABLES = (TOKEN_VARIABLE, "LT_MONITOR_ALERT_WEBHOOK")
KILLED = "killed"
COMMAND_SECONDS = 60
WEBHOOK_SECONDS = 10


def check_webhook(url: str) -> str:
    """Return the URL unchanged. Raises UsageError if it is no HTTP URL or contains a password."""
    parts = _parts(url)
    if parts is None:
        raise UsageError("--webhook needs a URL that begins with https:// or http://")
    if parts.username or parts.password:
        raise UsageError("--webhook: the URL must not contain a user or password", f"set {TOKEN_VARIABLE} for a bearer token")
    return url


def _parts(url: str) -> urllib.parse.SplitResult | None:
    try:
        parts = urllib.parse.urlsplit(url)
        # A port that is no number raises only when it is asked for.
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def run_command(command: str, finding: Finding) -> str | None:
    """Run `command` (words as in a shell, but without one) with the finding as a JSON line on stdin; what went wrong, or None."""
    try:
        process = subprocess.Popen(
            shlex.split(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={key: value for key, value in os.environ.items() if key not in SECRET_VARIABLES},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"--exec: {getattr(error, 'strerror', None) or error}"
    with process:
        try:
            process.communicate(json.dumps(finding.to_record()).encode() + b"\n", timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            return f"--exec: {KILLED} after {COMMAND_SECONDS} s"
        finally:
            if process.poll() is None:
                # Kill the whole process group: a killed shell leaves its children running.
                os.killpg(process.pid, signal.SIGKILL)
    return f"--exec: exit code {process.returncode}" if process.returncode else None


def post(url: str, findings: Sequence[Finding]) -> str | None:
    """POST the findings in the form of the chat service at `url`; what went wrong, or None.

    Of the URL only its host is told: the rest is often a secret. An endpoint has WEBHOOK_SECONDS for everything, however slowly
    it sends: time limits of sockets begin anew with each byte, and name servers have their own.
    """
    outcome: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: outcome.put(_post(url, findings)), daemon=True).start()
    try:
        return outcome.get(timeout=WEBHOOK_SECONDS)
    except queue.Empty:
        return _no_answer(url)


def _no_answer(url: str) -> str:
    return f"--webhook: {urllib.parse.urlsplit(url).hostname}: no answer within {WEBHOOK_SECONDS} s"


def _post(url: str, findings: Sequence[Finding]) -> str | None:
    host = urllib.parse.urlsplit(url).hostname
    # Discord refuses urllib's own name of the program.
    headers = {"Content-Type": "application/json; charset=utf-8", "User-Agent": "lt-monitor"}
    address = chat_messages.endpoint(url)
    request = urllib.request.Request(address, chat_messages.body(url, findings), headers, method="POST")
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=WEBHOOK_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"--webhook: {host} answers {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            # The socket's time limit, which began later: on a busy machine it can still be noticed first.
            return _no_answer(url)
        return f"--webhook: {host}: {getattr(reason, 'strerror', None) or type(reason).__name__}"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: findings contain text from logs and go only to the given URL."""

    def redirect_request(self, *arguments: object) -> None:
        return None


def beat(path: str, now: float, severity: str) -> None:
    """Write the time of a finished pass into `path`; an old one there means that nobody looks any more."""
    text = {"v": 1, "kind": "heartbeat", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)), "worst": severity}
    storage.write_bytes(path, json.dumps(text).encode() + b"\n")
