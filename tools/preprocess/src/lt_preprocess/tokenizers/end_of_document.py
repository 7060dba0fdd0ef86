"""Which token ends a document.

The `eos_token` of a chat model ends a turn of the conversation: `<|im_end|>` of Qwen, `<|return|>` of gpt-oss. A document is no
turn, and in pre-training these models saw another token between documents, which their vocabulary still has.
"""

from collections.abc import Collection

SEPARATORS = (
    *("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[EOS]", "<EOS_TOKEN>"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""The names that the token between documents has, the most telling first."""

TURN_ENDS = frozenset(
    [
        *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<end_of_turn>", "<turn|>", "<|return|>", "<|call|>"),
        *("<|end|>", "<|user|>", "<|observation|>", "<|END_OF_TURN_TOKEN|>", "[EOT]", "<|endofturn|>", "<|end_of_turn|>"),
        *("<|end_of_role|>", "<|eoa|>", "[|endofturn|]", "<end_of_utterance>", "<|im_sep|>", "<|endofmessage|>"),
        *("<|role_end|>", "<|assistant_end|>", "<\uff5cUser\uff5c>"),
    ]
)


def choose(eos_token: str | None, special_tokens: Collection[str]) -> str | None:
    """The end of a document, given the tokenizer's `eos_token` and its special tokens; None when there is none.

    Gemma 3 has a `</s>`, too, but as a tag of HTML: an ordinary token.
    """
    separator = next((name for name in SEPARATORS if name in special_tokens), None)
    if eos_token is None or (eos_token in TURN_ENDS and separator is not None):
        return separator
    return eos_token
