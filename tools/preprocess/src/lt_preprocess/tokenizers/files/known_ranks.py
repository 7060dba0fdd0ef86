"""tiktoken files that are known by their content: what their text is cut by, and the special tokens that they do not list.

Known by a hash of the ranks, not by their number: other tokenizers have 128,000 or 200,000 ranks, too. OpenAI publishes the
hashes of its own.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lt_preprocess.tokenizers import split_patterns
from lt_shared.tokenizers import llama3

END_OF_TEXT = "<|endoftext|>"


class Model(NamedTuple):
    """`special_tokens` and their ids, given the number after the last rank."""

    name: str
    regex: str
    special_tokens: Callable[[int], Mapping[str, int]]
    end_of_document: str
    is_nfc: bool = False


def sha256(ranks: Mapping[bytes, int]) -> str:
    """Return the hash of a file with one line per token and rank, in the order of the ranks."""
    lines = (b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in sorted(ranks.items(), key=lambda item: item[1]))
    return hashlib.sha256(b"".join(lines)).hexdigest()


def find(ranks: Mapping[bytes, int], file_name: str) -> Model | None:
    """The model whose ranks these are. gpt-oss has GPT-4o's ranks and other special tokens; only the file's name can tell."""
    model = MODELS.get(sha256(ranks))
    return _HARMONY if model is _O200K and "harmony" in file_name else model


def names() -> str:
    return ", ".join(dict.fromkeys(model.name for model in MODELS.values()))


def _numbered(names: Callable[[], Sequence[str]]) -> Callable[[int], Mapping[str, int]]:
    return lambda first: {name: number for number, name in enumerate(names(), first)}


def llama4_special_tokens() -> list[str]:
    """The 2,048 tokens after the ranks."""
    basic = ["begin_of_text", "end_of_text", "fim_prefix", "fim_middle", "fim_suffix"]
    post_train = [
        *("header_start", "header_end", "eom", "eot", "step"),
        *(f"text_post_train_reserved_special_token_{number}" for number in range(6)),
        *("python_start", "python_end", "finetune_right_pad"),
        *(f"text_post_train_reserved_special_token_{number}" for number in range(8, 69)),
    ]
    vision = [f"vision_reserved_special_token_{number}" for number in range(1048)]
    for name, index in (
        *(("image_start", 0), ("image_end", 1), ("tile_x_separator", 4)),
        *(("tile_y_separator", 5), ("image", 10), ("patch", 12)),
    ):
        vision.insert(index, name)
    reasoning = [f"reasoning_reserved_special_token_{number}" for number in range(8)]
    reasoning += ["reasoning_thinking_start", "reasoning_thinking_end"]
    names = [*basic, *post_train, *vision, *reasoning]
    names += [f"reserved_special_token_{number}" for number in range(2048 - len(names))]
    return [f"<|{name}|>" for name in names]


def _qwen_special_tokens() -> list[str]:
    return [END_OF_TEXT, "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]


def _qwen35_special_tokens() -> list[str]:
    bracketed = [
        *("endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start"),
        *("quad_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad"),
    ]
    code = ["fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep"]
    speech = ["<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>"]
    return [
        *(f"<|{name}|>" for name in bracketed),
        *("<tool_call>", "</tool_call>"),
        *(f"<|{name}|>" for name in code),
        *("<tool_response>", "</tool_response>", "<think>", "</think>"),
        *("<|audio_start|>", "<|audio_end|>", *speech, "<|audio_pad|>"),
    ]


def _kimi_special_tokens(first: int) -> dict[str, int]:
    """The 256 ids after the ranks; the others are reserved."""
    named = {
        0: "[BOS]",
        1: "[EOS]",
        2: "<|im_end|>",
        3: "<|im_user|>",
        4: "<|im_assistant|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        9: "[EOT]",
        10: "<|im_system|>",
        17: "<|im_middle|>",
        11: "<|tool_calls_section_begin|>",
        12: "<|tool_calls_section_end|>",
        13: "<|tool_call_begin|>",
        14: "<|tool_call_argument_begin|>",
        15: "<|tool_call_end|>",
        254: "[UNK]",
        255: "[PAD]",
    }
    return {named.get(index, reserved(first + index)): first + index for index in range(256)}


def reserved(number: int) -> str:
    """Kimi's name for an id that its configuration does not name."""
    return f"<|reserved_token_{number}|>"


def _fixed(**ids: int) -> Callable[[int], Mapping[str, int]]:
    return lambda _: {f"<|{name}|>": number for name, number in ids.items()}


def _harmony_special_tokens(first: int) -> dict[str, int]:
    """The ids up to 201,087; those without a name are reserved. 200,018 has both of its names in OpenAI's library."""
    named = {
        199998: "startoftext",
        199999: "endoftext",
        200002: "return",
        200003: "constrain",
        200005: "channel",
        200006: "start",
        200007: "end",
        200008: "message",
        200012: "call",
        200018: "endofprompt",
    }
    return {f"<|{named.get(number, f'reserved_{number}')}|>": number for number in range(first, 201088)}


_O200K = Model("GPT-4o", split_patterns.O200K, _fixed(endoftext=199999, endofprompt=200018), END_OF_TEXT)
_HARMONY = Model("gpt-oss", split_patterns.O200K, _harmony_special_tokens, END_OF_TEXT)
MODELS = {
    "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55": Model(
        "Llama 3", split_patterns.LLAMA3, _numbered(llama3.special_tokens), "<|end_of_text|>"
    ),
    "d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed": Model(
        "Llama 4", split_patterns.O200K, _numbered(llama4_special_tokens), "<|end_of_text|>"
    ),
    "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186": Model(
        "Qwen", split_patterns.QWEN2, _numbered(_qwen_special_tokens), END_OF_TEXT, is_nfc=True
    ),
    "8dde380a6405e935f5de16a99eb61c824f3f814dd1ed298784c72babb7a03cdd": Model(
        "Qwen 3.5", split_patterns.QWEN35, _numbered(_qwen35_special_tokens), END_OF_TEXT, is_nfc=True
    ),
    "b6c497a7469b33ced9c38afb1ad6e47f03f5e5dc05f15930799210ec050c5103": Model(
        "Kimi K2", split_patterns.KIMI, _kimi_special_tokens, "[EOS]"
    ),
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d": _O200K,
    "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7": Model(
        "GPT-4",
        split_patterns.CL100K,
        _fixed(endoftext=100257, fim_prefix=100258, fim_middle=100259, fim_suffix=100260, endofprompt=100276),
        END_OF_TEXT,
    ),
    "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069": Model(
        "GPT-3 (p50k_base)", split_patterns.GPT2, _fixed(endoftext=50256), END_OF_TEXT
    ),
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930": Model(
        "GPT-3 (r50k_base)", split_patterns.GPT2, _fixed(endoftext=50256), END_OF_TEXT
    ),
}
