"""Templates of published models render as in transformers, and hostile ones are refused."""

import json
import threading
from pathlib import Path

import chat_tokenizers
import pytest
from conversation_records import RECORDS

from lt_preprocess.conversations import chat_template, records
from lt_preprocess.conversations.chat_template import ChatTemplate
from lt_preprocess.readers.json_line import Unusable
from lt_shared.console import BadData, NoInput
from lt_shared.tokenizers import tokenizer_files

MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def render(template: str, messages: list[dict[str, object]] | None = None, **more: object) -> str:
    conversation = records.parse(json.dumps({"messages": messages or MESSAGES, **more}).encode())
    return ChatTemplate("it", {"default": template}, {"eos_token": "</s>"}).render(conversation, conversation.messages).text


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_tokenizers.write(tmp_path_factory.mktemp("tokenizer") / "chat")


def test_published_templates_render_as_in_transformers(tokenizer: Path) -> None:
    stock = chat_tokenizers.stock(tokenizer)
    counts = {"equal": 0, "refused": 0}
    templates = chat_tokenizers.published_templates()
    for name, text in templates.items():
        template = ChatTemplate(name, {"default": text}, stock.special_tokens_map)
        for kind, record in RECORDS.items():
            expected = rendered = None
            try:
                expected = stock.apply_chat_template(
                    record["messages"], tools=record.get("tools"), chat_template=text, tokenize=False
                )
            except Exception:
                # A template may raise what it likes for a conversation that it does not support.
                counts["refused"] += 1
            conversation = records.parse(json.dumps(record).encode())
            try:
                rendered = template.render(conversation, conversation.messages).text
            except Unusable:
                assert expected is None, (name, kind)
            assert rendered == expected, (name, kind)
            counts["equal"] += expected is not None
    assert len(templates) >= 25
    assert counts["equal"] > 8 * counts["refused"]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages.__class__.__mro__ }}", "access to attribute '__class__'"),
        ("{% set _ = messages.append(1) %}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{% for a in range(1100) %}{% for b in range(1100) %}{% endfor %}{% endfor %}", "loops more than 1,048,576 times"),
        ("{{ 'ab' * 99999999 }}", "makes a text of 199,999,998 characters"),
        ("{{ 9 ** 9 }}", "computes a power"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ raise_exception('only alternating roles') }}", "only alternating roles"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_a_template_that_may_not_be_run_says_why(template: str, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        render(template)


def test_variables_functions_and_blocks_are_those_of_transformers() -> None:
    assert render("{{ eos_token }}{{ tools }}{{ add_generation_prompt }}") == "</s>NoneFalse"
    assert render("{{ {'b': '<\u00e9>'} | tojson }}") == '{"b": "<\u00e9>"}'
    assert (
        render("{% for m in messages %}\n  {%- if loop.index > 1 %}{% break %}{% endif %}\n{{ m.role }}\n{% endfor %}")
        == "user\n"
    )
    assert render("{{ depth }}", chat_template_kwargs={"depth": 3}) == "3"


def test_the_date_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert render("{{ strftime_now('%d %b %Y') }}") == "02 Jan 1970"
    assert ChatTemplate("it", {"default": "{{ strftime_now('%Y') }}"}, {}).date == "1970-01-02"
    assert ChatTemplate("it", {"default": "{{ messages }}"}, {}).date is None


def test_threads_do_not_mix_what_their_blocks_mark() -> None:
    template = ChatTemplate("it", {"default": "{{ messages[0].content }}{% generation %}x{% endgeneration %}"}, {})
    starts: dict[int, set[int]] = {}

    def work(length: int) -> None:
        conversation = records.parse(json.dumps({"messages": [{"role": "user", "content": "a" * length}]}).encode())
        starts[length] = {template.render(conversation, conversation.messages).generated[0][0] for _ in range(200)}

    threads = [threading.Thread(target=work, args=(length,)) for length in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert starts == {length: {length} for length in range(1, 9)}


def test_templates_are_found_as_transformers_finds_them(tmp_path: Path) -> None:
    directory = chat_tokenizers.write(tmp_path / "chat")
    with pytest.raises(NoInput, match="this tokenizer has no chat template"):
        chat_template.load(tokenizer_files.find(directory))
    config = json.loads((directory / "tokenizer_config.json").read_text())
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    template = chat_template.load(tokenizer_files.find(directory))
    assert template.texts == {"default": "plain", "tool_use": "with tools"}
    conversation = records.parse(json.dumps({"messages": MESSAGES, "tools": []}).encode())
    assert template.render(conversation, conversation.messages).text == "with tools"
    (directory / "chat_template.jinja").write_text("{{ bos_token }}")
    template = chat_template.load(tokenizer_files.find(directory))
    assert template.render(conversation, conversation.messages).text == "<s>"
    assert chat_template.load(tokenizer_files.find(directory), "a {{ eos_token }}").texts == {"default": "a {{ eos_token }}"}
    (directory / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(BadData, match=r"chat_template\.jinja: not a template: Expected an expression"):
        chat_template.load(tokenizer_files.find(directory))
