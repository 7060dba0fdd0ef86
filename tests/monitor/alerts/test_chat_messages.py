"""Each chat service shows a finding as text: its documented rules for mentions, links and images, held against hostile findings.

Slack: docs.slack.dev, "Formatting message text" and "Text object". Mattermost: developers.mattermost.com, "Incoming webhooks";
its server expands `<!channel>` and looks for mentions in text nodes of the Markdown only (app/slack.go, app/notification.go).
Discord: "Execute Webhook" and "Allowed mentions object" of its developer documentation. Teams: learn.microsoft.com, "Text
features" of Adaptive Cards.
"""

import json
import re
from typing import Any

import pytest
from markdown_it import MarkdownIt

from lt_monitor.alerts import chat_messages
from lt_monitor.alerts.chat_messages import Service, service_of
from lt_monitor.events.alert_findings import Finding

URLS = {
    Service.SLACK: "https://hooks.slack.com/services/T0/B0/secret",
    Service.MATTERMOST: "https://chat.example.org/hooks/bywsw8zt5jgpte3nm65qjiru6h",
    Service.DISCORD: "https://discord.com/api/webhooks/1/secret",
    Service.TEAMS: "https://prod-07.westeurope.logic.azure.com:443/workflows/secret/triggers/manual/paths/invoke?sig=x",
    Service.OTHER: "https://alerts.example.org/lt",
}
HOSTILE = (
    "<!channel> <!here> <@U024BE7LH> <!subteam^S1> <https://evil.example|bank> @all @here @channel @everyone <@1> <@&2>"
    " [a](https://evil.example) ![a](https://evil.example/a.png) <at>Bob</at> {{DATE(2026-01-01T00:00:00Z)}} & **b** # h"
    " ``` ` ~~~ </pre> <img src=x> \x1b[31m \x9b31m \u202eabc\u2066\u200f\u061c\r\n```\n@all"
)


def finding(message: str = HOSTILE, run: str = "r`1`") -> Finding:
    return Finding("xid", "critical", run, "xid:1", message)


def message(service: Service, *findings: Finding) -> Any:
    return json.loads(chat_messages.body(URLS[service], findings))


@pytest.mark.parametrize("service", Service)
def test_the_url_tells_the_service(service: Service) -> None:
    assert service_of(URLS[service]) is service


@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("https://hooks.slack-gov.com/services/T/B/x", Service.SLACK),
        ("https://canary.discord.com/api/webhooks/1/x/slack", Service.DISCORD),
        ("https://discordapp.com/api/webhooks/1/x", Service.DISCORD),
        ("https://corp.webhook.office.com/webhookb2/x", Service.TEAMS),
        ("https://default1.2.environment.api.powerplatform.com/powerautomate/x", Service.TEAMS),
        ("https://example.org/chat/hooks/bywsw8zt5jgpte3nm65qjiru6h", Service.MATTERMOST),
        ("https://example.org/hooks/deploy", Service.OTHER),
        ("https://hooks.slack.com.example.org/services/x", Service.OTHER),
        ("https://notdiscord.com/x", Service.OTHER),
    ],
)
def test_hosts_that_resemble_each_other(url: str, service: Service) -> None:
    assert service_of(url) is service


@pytest.mark.parametrize("service", Service)
def test_no_control_or_formatting_character_is_sent(service: Service) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for element in value.values() for text in texts(element)]
        return [text for element in value for text in texts(element)] if isinstance(value, list) else [str(value)]

    for text in texts(message(service, finding(), finding())):
        assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("service", [Service.SLACK, Service.OTHER])
def test_slack_gets_its_three_characters_as_entities(service: Service) -> None:
    text = message(service, finding())["text"]
    assert not re.search(r"[<>]|&(?!(amp|lt|gt);)", text)
    assert "&lt;!channel&gt; &lt;!here&gt; &lt;@U024BE7LH&gt;" in text


def test_slack_shows_plain_text_without_links_and_previews() -> None:
    sent = message(Service.SLACK, finding())
    (block,) = sent["blocks"]
    assert block == {"type": "section", "text": {"type": "plain_text", "text": sent["text"], "emoji": False}}
    assert (sent["unfurl_links"], sent["unfurl_media"]) == (False, False)


@pytest.mark.parametrize(("service", "key"), [(Service.MATTERMOST, "text"), (Service.DISCORD, "content")])
def test_markdown_is_shown_as_one_block_of_code(service: Service, key: str) -> None:
    text = message(service, finding(), finding("``` @all\n```\n@here"))[key]
    for announcement in ("channel", "here", "all"):
        text = text.replace(f"<!{announcement}>", f"@{announcement}")
    (token,) = MarkdownIt("commonmark").parse(text)
    assert (token.type, token.markup) == ("fence", "```")
    assert token.info == ""
    assert token.content.startswith("CRITICAL xid r'1': @channel @here")


def test_discord_mentions_nobody_and_shows_no_previews() -> None:
    sent = message(Service.DISCORD, finding())
    assert sent["allowed_mentions"] == {"parse": []}
    assert sent["flags"] == 4
    assert set(sent) == {"content", "allowed_mentions", "flags"}


@pytest.mark.parametrize(("ending", "kept"), [("/slack", ""), ("/github", ""), ("/slack?wait=true", "?wait=true"), ("", "")])
def test_discord_gets_its_own_form_of_messages(ending: str, kept: str) -> None:
    assert chat_messages.endpoint(URLS[Service.DISCORD] + ending) == URLS[Service.DISCORD] + kept
    assert chat_messages.endpoint("https://example.org/slack") == "https://example.org/slack"


def test_teams_gets_text_runs_without_markdown_and_entities() -> None:
    (attachment,) = message(Service.TEAMS, finding(), finding("b"))["attachments"]
    card = attachment["content"]
    assert set(card) == {"$schema", "type", "version", "body"}
    assert [block["type"] for block in card["body"]] == ["RichTextBlock", "RichTextBlock"]
    assert all([run["type"] for run in block["inlines"]] == ["TextRun"] for block in card["body"])


LIMITS = {
    Service.SLACK: lambda sent: len(sent["blocks"][0]["text"]["text"]) <= 3000,
    Service.MATTERMOST: lambda sent: len(sent["text"]) <= 4000,
    Service.DISCORD: lambda sent: len(sent["content"]) <= 2000,
    Service.TEAMS: lambda sent: len(json.dumps(sent)) <= 28_000,
}


@pytest.mark.parametrize("character", ["a", "<", "界"])
@pytest.mark.parametrize("service", LIMITS)
def test_a_message_keeps_to_the_limit_of_its_service(service: Service, character: str) -> None:
    many = [finding(character * 5000, character * 5000) for _ in range(60)]
    sent = message(service, *many)
    assert LIMITS[service](sent)
    text = json.dumps(sent, ensure_ascii=False)
    assert character * 300 in text.replace("&lt;", "<")
    assert re.search(r"and \d+ more", text)
    assert len(text) > 1000


def test_another_endpoint_gets_the_records() -> None:
    sent = message(Service.OTHER, *[finding()] * 60)
    assert sent["text"].endswith("\nand 10 more")
    assert len(sent["findings"]) == 50
    assert sent["findings"][0]["rule"] == "xid"
