"""What counts in the loss is the assistant's turns, up to the token that ends each."""

import json
from pathlib import Path

import chat_tokenizers
import numpy as np
import pytest
from conversation_records import RECORDS

from lt_preprocess.conversations import records, turns
from lt_preprocess.conversations.chat_template import ChatTemplate
from lt_preprocess.conversations.turns import TrainOn
from lt_preprocess.readers.json_line import Unusable

SPECIAL_TOKENS = sorted(chat_tokenizers.SPECIAL_TOKENS, key=len, reverse=True)
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
# As Mistral's, which moves the system message into the last turn of the user.
MOVING = """{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}[INST] {% if loop.last or messages[-1] == messages[loop.index0 + 1] %}{{ system }} {% endif %}
{{- m.content }} [/INST]
{%- elif m.role == 'assistant' -%} {{ m.content }}</s>{%- endif -%}
{%- endfor -%}"""


def counted(template: str, record: object, train_on: TrainOn = "assistant") -> list[str]:
    conversation = records.parse(json.dumps(record).encode())
    text = turns.counted_text(conversation, ChatTemplate("it", {"default": template}, {}), train_on, SPECIAL_TOKENS)
    return [text.text[begin:end].decode() for begin, end in text.counted.tolist()]


def test_turns_of_templates_without_marks() -> None:
    assert counted(CHATML, RECORDS["plain"]) == ["Good day! How can I help? \n<|im_end|>", "It is 4.<|im_end|>"]
    assert counted(CHATML, RECORDS["plain"], "last") == ["It is 4.<|im_end|>"]
    assert counted(CHATML, RECORDS["single"], "all") == [
        "<|im_start|>user\nOnly<|im_end|>\n<|im_start|>assistant\nOne<|im_end|>\n"
    ]


def test_turns_that_a_template_writes_in_another_way_once_others_follow() -> None:
    record = {"messages": [{"role": "system", "content": "Be brief."}, *RECORDS["plain"]["messages"]]}
    assert counted(MOVING, record) == ["Good day! How can I help? \n</s>", "It is 4.</s>"]


def test_a_turn_that_cannot_be_found_is_no_guess() -> None:
    record = {"messages": [*RECORDS["system"]["messages"][:2], {"role": "assistant"}, *RECORDS["system"]["messages"][3:]]}
    with pytest.raises(Unusable, match="writes message 3 in another way once others follow"):
        counted(MOVING, record)


def test_weights_choose_among_the_turns() -> None:
    messages = [dict(message) for message in RECORDS["plain"]["messages"]]
    messages[1]["weight"] = 0
    assert counted(CHATML, {"messages": messages}) == ["It is 4.<|im_end|>"]
    marked = CHATML.replace("{{ m.content }}<|im_end|>", "{% generation %}{{ m.content }}{% endgeneration %}<|im_end|>")
    with pytest.raises(Unusable, match="marks 4 parts for 2 turns"):
        counted(marked, {"messages": messages})
    messages[3]["weight"] = 0
    with pytest.raises(Unusable, match="nothing in it counts in the loss"):
        counted(CHATML, {"messages": messages})


def test_published_templates_agree_with_their_variants_for_training(tmp_path: Path) -> None:
    """A variant marks what its model generates. Here the turn begins behind the prompt, and ends with its special token."""
    templates = chat_tokenizers.published_templates()
    compared = 0
    for name, text in templates.items():
        # It marks the parts of a turn one by one.
        marked = templates.get(f"{name}_training")
        if marked is None or name == "diffusion_gemma":
            continue
        named = {"eos_token": "<|endoftext|>", "bos_token": "<s>"}
        plain, training = (ChatTemplate(name, {"default": template}, named) for template in (text, marked))
        for kind, record in RECORDS.items():
            conversation = records.parse(json.dumps(record).encode())
            try:
                expected = turns.counted_text(conversation, training, "assistant", SPECIAL_TOKENS)
                found = turns.counted_text(conversation, plain, "assistant", SPECIAL_TOKENS)
            except Unusable as reason:
                assert "refuses it" in str(reason), (name, kind, reason)
                continue
            if found.text != expected.text:
                continue
            compared += 1
            numbers = [_turn_numbers(text.text, text.counted) for text in (found, expected)]
            assert not (numbers[0] & ~numbers[1]).any(), (name, kind)
            left_out = expected.text, np.flatnonzero(numbers[1] & ~numbers[0])
            assert _is_prompt_or_space(*left_out, found.counted), (name, kind)
    assert compared > 100


def _turn_numbers(text: bytes, bounds: np.ndarray) -> np.ndarray:
    counts = np.zeros(len(text), np.bool_)
    for begin, end in bounds.tolist():
        counts[begin:end] = True
    return counts


def _is_prompt_or_space(text: bytes, places: np.ndarray, bounds: np.ndarray) -> bool:
    """Whether all places that do not count stand directly before a turn, or are white space behind one or a last token."""
    if not len(places):
        return True
    for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
        is_prompt = any(run[-1] + 1 == begin for begin, _ in bounds.tolist())
        if not is_prompt and text[run[0] : run[-1] + 1].strip():
            return False
    return True
