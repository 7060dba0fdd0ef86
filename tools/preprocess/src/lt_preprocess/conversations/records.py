"""Read a record of a chat file: messages, prompt and completion, or ShareGPT's turns.

    {"messages": [{"role": "user", "content": "..."}, ...], "tools": [...]}      OpenAI, TRL, most datasets of the Hub
    {"conversations": [{"from": "human", "value": "..."}, ...], "system": "..."} ShareGPT, LLaMA-Factory
    {"prompt": "...", "completion": "..."}                                       strings, or lists of messages

Strings of `prompt` and `completion` become a turn of the user and a turn of the assistant. A message with `"weight": 0` does not
count in the loss, as in OpenAI's fine-tuning. `chat_template_kwargs` holds variables for the template, as in TRL.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import orjson

from lt_preprocess.readers import json_line
from lt_preprocess.readers.json_line import Unusable

Message = dict[str, Any]

ASSISTANT = "assistant"
# Keys that a conversation is read from; Parquet's other columns are not decoded.
KEYS = (
    *("messages", "conversations", "conversation", "prompt", "completion"),
    *("system", "tools", "documents", "chat_template_kwargs"),
)

_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "bot"), ASSISTANT),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    "system": "system",
}
# transformers 5 passes a message's reasoning on under the first name, and under the second one for gpt-oss.
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


@dataclasses.dataclass(frozen=True)
class Conversation:
    """`counted` says for each message whether its record allows it to count in the loss."""

    messages: list[Message]
    counted: list[bool]
    tools: list[Any] | None = None
    documents: list[Any] | None = None
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def parse(record_json: bytes) -> Conversation:
    """Read a record, a JSON object in UTF-8. Raises Unusable, which says why it holds no conversation."""
    try:
        record = orjson.loads(record_json)
    except orjson.JSONDecodeError as error:
        raise Unusable(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise Unusable("not a JSON object")
    messages = [_without_nulls(message) for message in _messages(record)]
    weights = [message.get("weight", 1) for message in messages]
    if any(weight not in (0, 1) for weight in weights):
        raise Unusable(f"a message has weight {next(weight for weight in weights if weight not in (0, 1))!r}, expected 0 or 1")
    variables = record.get("chat_template_kwargs") or {}
    if not isinstance(variables, dict):
        raise Unusable("'chat_template_kwargs' is not an object")
    return Conversation(
        list(map(_with_reasoning, messages)),
        [bool(weight) for weight in weights],
        _list_in(record, "tools"),
        _list_in(record, "documents"),
        variables,
    )


def _messages(record: Mapping[str, Any]) -> list[Message]:
    for key in ("messages", "conversations", "conversation"):
        if record.get(key) is not None:
            turns = record[key]
            is_list = isinstance(turns, list) and turns != [] and all(isinstance(turn, dict) for turn in turns)
            if not is_list:
                raise Unusable(f"{key!r} is not a list of messages")
            messages = [_from_sharegpt(turn) if "from" in turn and "role" not in turn else turn for turn in turns]
            return _checked(_with_system(record, messages))
    if record.get("prompt") is not None and record.get("completion") is not None:
        prompt, completion = _turns(record, "prompt", "user"), _turns(record, "completion", ASSISTANT)
        # Only the completion counts, whatever the prompt has.
        unweighted = [turn | {"weight": 0} if turn.get("role") == ASSISTANT else turn for turn in prompt]
        return _checked(_with_system(record, [*unweighted, *completion]))
    raise Unusable(json_line.missing_key("messages", record))


def _turns(record: Mapping[str, Any], key: str, role: str) -> list[Message]:
    turns = record[key]
    if isinstance(turns, str):
        return [{"role": role, "content": turns}]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Unusable(f"{key!r} is neither a string nor a list of messages")
    return turns


def _with_system(record: Mapping[str, Any], messages: list[Message]) -> list[Message]:
    system = record.get("system")
    if not isinstance(system, str) or not system or messages[0].get("role") == "system":
        return messages
    return [{"role": "system", "content": system}, *messages]


def _from_sharegpt(turn: Mapping[str, Any]) -> Message:
    role = _SHAREGPT_ROLES.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        raise Unusable(f"a turn is from {turn['from']!r}, known are {', '.join(_SHAREGPT_ROLES)}")
    message = {key: value for key, value in turn.items() if key not in ("from", "value")}
    return {"role": role, "content": turn.get("value"), **message}


def _checked(messages: list[Message]) -> list[Message]:
    for number, message in enumerate(messages, 1):
        if not isinstance(message.get("role"), str):
            raise Unusable(f"message {number} has no role")
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        for part in parts:
            kind = part.get("type", "text") if isinstance(part, dict) else "text"
            if kind != "text" or not isinstance(part, str | dict | None):
                raise Unusable(f"message {number} has content of type {kind!r}: only text is tokenized")
    return messages


def _without_nulls(message: Message) -> Message:
    """As transformers, which passes no key with null to a template."""
    return {key: value for key, value in message.items() if value is not None}


def _with_reasoning(message: Message) -> Message:
    reasoning = next((message[key] for key in _REASONING_KEYS if key in message), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _list_in(record: Mapping[str, Any], key: str) -> list[Any] | None:
    """The list under `key`, also if it is written as a text in JSON."""
    value = record.get(key)
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else None
        except ValueError:
            raise Unusable(f"{key!r} is a text that is not JSON") from None
    if value is not None and not isinstance(value, list):
        raise Unusable(f"{key!r} is not a list")
    return value
