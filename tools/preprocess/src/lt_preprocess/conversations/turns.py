"""Render a conversation, and find the parts of its text that count in the loss: the assistant's turns.

A template with `{% generation %}` blocks marks these parts itself. Other templates are rendered several times. The turn of a
message begins where the rendering of the messages before it, with the generation prompt, ends; it ends where the rendering of the
messages up to it ends. Some templates write an earlier turn in another way once others follow: Qwen3 leaves its reasoning out,
Mistral moves the tools to the last turn. Then the message is rendered with two other contents in its place, and the turn is the
text that differs, with the special token behind it. A conversation whose turns cannot be found in either way is a bad line;
nothing is guessed.

A turn ends with its last special token (`<|im_end|>`), which the model has to learn. The line break behind it is the template's.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lt_preprocess.conversations.chat_template import ChatTemplate
from lt_preprocess.conversations.records import ASSISTANT, Conversation, Message
from lt_preprocess.readers.json_line import Unusable

TrainOn = Literal["assistant", "last", "all"]
"""The turns that count: each of the assistant's, its last one, or all text."""

# Contents that share neither their first nor their last character.
_PROBES = ("probe", "other")


class CountedText(NamedTuple):
    """A text in UTF-8, and the bounds in bytes of its parts that count in the loss, int64 [parts, 2], ascending."""

    text: bytes
    counted: npt.NDArray[np.int64]


def counted_text(
    conversation: Conversation, template: ChatTemplate, train_on: TrainOn, special_tokens: Sequence[str]
) -> CountedText:
    """Render a conversation. `special_tokens` are the texts of the tokenizer's special tokens.

    Raises Unusable if the template refuses the conversation, or if nothing in it counts in the loss.
    """
    rendered = template.render(conversation, conversation.messages)
    if train_on == "all":
        bounds = [(0, len(rendered.text))]
    else:
        numbers = _counted_messages(conversation, train_on)
        if template.marks_generation:
            bounds = _marked(conversation, rendered.generated, numbers)
        else:
            bounds = [_Turn(conversation, template, rendered.text, number, special_tokens).bounds() for number in numbers]
    if not any(end > begin for begin, end in bounds):
        raise Unusable("nothing in it counts in the loss: it has no turn of the assistant")
    return CountedText(rendered.text.encode("utf-8", "surrogatepass"), _in_bytes(rendered.text, bounds))


def _counted_messages(conversation: Conversation, train_on: TrainOn) -> list[int]:
    is_assistant = [message["role"] == ASSISTANT for message in conversation.messages]
    numbers = [number for number, counts in enumerate(conversation.counted) if counts and is_assistant[number]]
    return numbers[-1:] if train_on == "last" else numbers


def _marked(conversation: Conversation, generated: list[tuple[int, int]], numbers: list[int]) -> list[tuple[int, int]]:
    """The marked parts of the messages `numbers`. Without weights, and with all turns, these are all parts."""
    turns = [number for number, message in enumerate(conversation.messages) if message["role"] == ASSISTANT]
    if numbers == turns:
        return generated
    if len(generated) != len(turns):
        raise Unusable(f"the template marks {len(generated)} parts for {len(turns)} turns: which one counts is not known")
    return [bounds for bounds, number in zip(generated, turns, strict=True) if number in numbers]


class _Turn:
    """The turn of message `number` of a conversation in `text`, the rendering of all messages."""

    def __init__(self, conversation: Conversation, template: ChatTemplate, text: str, number: int, special_tokens: Sequence[str]):
        self._conversation = conversation
        self._template = template
        self._text = text
        self._number = number
        self._special_tokens = special_tokens

    def bounds(self) -> tuple[int, int]:
        begin, end = self._prompt_end(), self._turn_end()
        if begin is not None and end is None:
            end = self._next_end(begin)
        if begin is None or end is None or end <= begin:
            content_begin, content_end = self._content_bounds()
            begin = content_begin if begin is None or begin > content_begin else begin
            end = self._behind_special_token(content_end) if end is None or end < content_end else end
        return begin, self._without_last_space(begin, end)

    def _prompt_end(self) -> int | None:
        """Where the prompt for this turn ends in the text; None if the text before this turn is not that of the prompt."""
        messages = self._conversation.messages[: self._number]
        if not messages:
            return None
        prompt, end = self._rendered(messages, add_generation_prompt=True), 0
        if prompt is not None:
            end = _common_length(prompt, self._text)
        if prompt is None or end == len(prompt):
            return end or None
        # A prompt may open reasoning that this turn does not have: the rest of the prompt is not in the text.
        without_prompt = self._rendered(messages)
        is_known = without_prompt is not None and len(without_prompt) < end and self._text.startswith(without_prompt)
        return end if is_known else None

    def _turn_end(self) -> int | None:
        messages = self._conversation.messages
        if self._number == len(messages) - 1:
            return len(self._text)
        through_turn = self._through_turn
        while through_turn and not self._text.startswith(through_turn):
            # Some templates end the whole text with a token.
            token = next((token for token in self._special_tokens if through_turn.endswith(token)), None)
            if token is None:
                return None
            through_turn = through_turn.removesuffix(token)
            if self._text.startswith(through_turn) and not through_turn.rstrip().endswith(tuple(self._special_tokens)):
                # gpt-oss ends the last turn with another token than an earlier one.
                return self._behind_special_token(len(through_turn))
        return len(through_turn) if through_turn else None

    def _next_end(self, begin: int) -> int | None:
        """The end of the first special token behind `begin` that also ends the rendering up to this turn.

        None if the next message comes before it: gpt-oss ends the last turn with another token.
        """
        through_turn = self._through_turn or ""
        token = next((token for token in self._special_tokens if through_turn.rstrip().endswith(token)), None)
        content = self._conversation.messages[self._number + 1].get("content")
        if token is None or not isinstance(content, str) or not content:
            return None
        position, next_message = self._text.find(token, begin), self._text.find(content, begin)
        return position + len(token) if 0 <= position < next_message else None

    @functools.cached_property
    def _through_turn(self) -> str | None:
        """The rendering of the messages up to this turn."""
        return self._rendered(self._conversation.messages[: self._number + 1])

    def _rendered(self, messages: list[Message], add_generation_prompt: bool = False) -> str | None:
        """Render some of the messages; None if the template refuses them: it may want a question last, or an answer to a call."""
        try:
            return self._template.render(self._conversation, messages, add_generation_prompt).text
        except Unusable:
            return None

    def _content_bounds(self) -> tuple[int, int]:
        """Where the content of the message is: what differs when other contents are in its place."""
        texts = [self._text, *map(self._with_content, _PROBES)]
        begin = min(_common_length(one, other) for one, other in itertools.pairwise(texts))
        reversed_ends = [text[begin:][::-1] for text in texts]
        behind = min(_common_length(one, other) for one, other in itertools.pairwise(reversed_ends))
        return begin, len(self._text) - behind

    def _with_content(self, content: str) -> str:
        messages = list(self._conversation.messages)
        message = messages[self._number]
        if not isinstance(message.get("content"), str) or not message["content"]:
            raise self._unknown()
        messages[self._number] = message | {"content": content}
        return self._template.render(self._conversation, messages).text

    def _unknown(self) -> Unusable:
        return Unusable(
            f"the chat template writes message {self._number + 1} in another way once others follow,"
            " so what counts in the loss is not known: --chat-template takes one with {% generation %} blocks"
        )

    def _behind_special_token(self, position: int) -> int:
        """The end of a special token at `position`, behind white space; `position` if there is none."""
        rest = self._text[position:]
        start = len(rest) - len(rest.lstrip())
        token = max((token for token in self._special_tokens if rest.startswith(token, start)), key=len, default=None)
        return position if token is None else position + start + len(token)

    def _without_last_space(self, begin: int, end: int) -> int:
        """`end` without the white space that a template writes behind a turn's special token."""
        stripped = self._text[begin:end].rstrip()
        return begin + len(stripped) if stripped.endswith(tuple(self._special_tokens)) else end


def _common_length(one: str, other: str) -> int:
    """How many characters two texts have in common from their beginning, by bisection: Python compares slices quickly."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _in_bytes(text: str, bounds: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Bounds in characters as bounds in bytes, without empty parts."""
    parts = sorted(part for part in bounds if part[1] > part[0])
    if text.isascii():
        return np.array(parts, np.int64).reshape(-1, 2)
    in_bytes, position, offset = [], 0, 0
    for bound in (bound for part in parts for bound in part):
        offset += len(text[position:bound].encode("utf-8", "surrogatepass"))
        position = bound
        in_bytes.append(offset)
    return np.array(in_bytes, np.int64).reshape(-1, 2)
