"""Compose the message for a webhook: findings that a chat service shows as text, whatever stands in the log.

Slack, Mattermost, Discord and Teams have different marks for mentions, links and images. Each service has a form that ignores
these marks: a text object of type plain_text, a block of code, `allowed_mentions` without entries, a RichTextBlock. The host or
the path of the URL tells the service. Any other endpoint gets the findings as records, too.
"""

import enum
import json
import re
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from lt_monitor.events.alert_findings import Finding
from lt_monitor.events.escaping import printable

MAXIMUM_FINDINGS = 50


class Service(enum.Enum):
    SLACK = "Slack"
    MATTERMOST = "Mattermost"
    DISCORD = "Discord"
    TEAMS = "Teams"
    OTHER = "other"


# How much text a message has at most.
_CHARACTERS = {
    # A text object may have 3,000.
    Service.SLACK: 2900,
    # Old servers split a message after 4,000: its second part would be outside of the block of code.
    Service.MATTERMOST: 3900,
    # A message may have 2,000, the block of code among them.
    Service.DISCORD: 1950,
    # A message may have 28 kB, and JSON needs up to six bytes for a character.
    Service.TEAMS: 4000,
}
_HOSTS = {
    Service.SLACK: re.compile(r"hooks\.slack(-gov)?\.com"),
    Service.DISCORD: re.compile(r"(\w+\.)?discord(app)?\.com"),
    Service.TEAMS: re.compile(r"outlook\.office\.com|.+\.(webhook\.office\.com|logic\.azure\.\w+|api\.powerplatform\.\w+)"),
}
# Mattermost runs on any host. Its keys have 26 characters.
_MATTERMOST_PATH = re.compile(r".*/hooks/[a-z0-9]{26}/?")
# Discord's endpoints for messages in the forms of Slack and GitHub cannot switch mentions off.
_FOREIGN_FORM = re.compile(r"/(slack|github)/?(?=\?|$)")


def service_of(url: str) -> Service:
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    service = next((service for service, hosts in _HOSTS.items() if hosts.fullmatch(host)), Service.OTHER)
    return Service.MATTERMOST if service is Service.OTHER and _MATTERMOST_PATH.fullmatch(parts.path) else service


def endpoint(url: str) -> str:
    """Return the URL that takes the service's own form of messages."""
    return _FOREIGN_FORM.sub("", url) if service_of(url) is Service.DISCORD else url


def body(url: str, findings: Sequence[Finding]) -> bytes:
    """Return the JSON that the endpoint at `url` is sent."""
    service = service_of(url)
    lines = [finding.line() for finding in findings]
    if service is Service.SLACK:
        text = _fitting(lines, _CHARACTERS[service], _entities)
        shown = {"type": "section", "text": {"type": "plain_text", "text": text, "emoji": False}}
        message: dict[str, Any] = {"text": text, "blocks": [shown], "unfurl_links": False, "unfurl_media": False}
    elif service is Service.MATTERMOST:
        message = {"text": _code_block(lines, service)}
    elif service is Service.DISCORD:
        suppress_embeds = 1 << 2
        message = {"content": _code_block(lines, service), "allowed_mentions": {"parse": []}, "flags": suppress_embeds}
    elif service is Service.TEAMS:
        paragraphs = _fitting(lines, _CHARACTERS[service]).split("\n")
        blocks = [{"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text}]} for text in paragraphs]
        schema = "http://adaptivecards.io/schemas/adaptive-card.json"
        card = {"$schema": schema, "type": "AdaptiveCard", "version": "1.2", "body": blocks}
        message = {
            "type": "message",
            "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive", "content": card}],
        }
    else:
        message = _records(findings)
    return json.dumps(message).encode()


def _records(findings: Sequence[Finding]) -> dict[str, Any]:
    """The lines with Slack's entities, which services like it display as characters, and the findings themselves."""
    lines = [_entities(finding.line()) for finding in findings[:MAXIMUM_FINDINGS]]
    if len(findings) > MAXIMUM_FINDINGS:
        lines.append(f"and {len(findings) - MAXIMUM_FINDINGS} more")
    return {"text": "\n".join(lines), "findings": [_escaped(finding.to_record()) for finding in findings[:MAXIMUM_FINDINGS]]}


def _fitting(lines: Sequence[str], characters: int, escape: Callable[[str], str] = str) -> str:
    """Join as many escaped lines as fit, and say how many more there are. A first line that does not fit is cut."""
    shown: list[str] = []
    room = characters - len(f"and {len(lines):,} more")
    for line in lines:
        escaped = escape(line)
        if len(escaped) >= room and not shown:
            # An entity has up to five characters.
            escaped = escape(line[: room // 5]) + "…"
        if len(escaped) >= room:
            break
        shown.append(escaped)
        room -= len(escaped) + 1
    omitted = len(lines) - len(shown)
    return "\n".join([*shown, f"and {omitted:,} more"] if omitted else shown)


def _entities(text: str) -> str:
    """Escape mark-up as Slack asks for: its three control characters, and no others."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _code_block(lines: Sequence[str], service: Service) -> str:
    """Return the lines as a block of code, in which Markdown is text and nobody is mentioned. No backtick can end it early."""
    text = _fitting([line.replace("`", "'") for line in lines], _CHARACTERS[service])
    return f"```\n{text}\n```"


def _escaped(value: object) -> object:
    """A record whose texts have no control characters."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key)): _escaped(element) for key, element in value.items()}
    return [_escaped(element) for element in value] if isinstance(value, list) else value
