"""The special tokens of Llama 3, which its tiktoken file does not list."""

_NAMED = {
    0: "begin_of_text",
    1: "end_of_text",
    4: "finetune_right_pad_id",
    6: "start_header_id",
    7: "end_header_id",
    8: "eom_id",
    9: "eot_id",
    10: "python_tag",
}


def special_tokens() -> list[str]:
    """Return the 256 special tokens, by Llama 3.1's names; Llama 3 reserves three of these names.

    Their ids follow the tiktoken file's.
    """
    reserved = (f"reserved_special_token_{number}" for number in range(256))
    return [f"<|{_NAMED[index] if index in _NAMED else next(reserved)}|>" for index in range(256)]
