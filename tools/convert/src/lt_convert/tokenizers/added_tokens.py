"""Add to a tokenizer the tokens that the files beside its vocabulary name, as transformers does when it loads those files.

`lt_shared.tokenizers.configuration` reads the files, with the precedence of transformers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lt_shared.console import BadData, warn
from lt_shared.tokenizers.configuration import FLAGS, Configuration


def add(tokenizer: Any, beside: Configuration, configuration: Mapping[str, Any], directory: Path) -> None:
    """Add the added tokens of `beside` to a tokenizer, and the post-processor of `configuration` (tokenizer_config.json).

    Warns of a token that gets another id than the files say. Raises BadData for an id that is no number.
    """
    from tokenizers import AddedToken

    for token in beside.added_tokens:
        text, number = token["content"], token["id"]
        if number is not None and type(number) is not int:
            raise BadData(f"added_tokens.json: {text!r:.40} has the id {number!r:.40}, which is no number", "mend the file")
        added = AddedToken(text, **{flag: token[flag] for flag in FLAGS})
        (tokenizer.add_special_tokens if token["special"] else tokenizer.add_tokens)([added])
        if number is not None and tokenizer.token_to_id(text) != number:
            warn(f"{directory.name}: the added token {text!r:.40} has id {number:,} in the tokenizer's files, and "
                 f"{tokenizer.token_to_id(text)} in {directory.name}/tokenizer.json")  # fmt: skip
    _set_template(tokenizer, configuration)


def _set_template(tokenizer: Any, configuration: Mapping[str, Any]) -> None:
    """Replace the post-processor if the configuration says whether each text gets begin and end tokens."""
    from tokenizers import processors

    if not {"add_bos_token", "add_eos_token"} & set(configuration):
        return
    begin, end = (_content(configuration.get(f"{role}_token")) for role in ("bos", "eos"))
    begin = begin if configuration.get("add_bos_token") else None
    end = end if configuration.get("add_eos_token") else None
    tokens = [(text, tokenizer.token_to_id(text)) for text in dict.fromkeys((begin, end)) if text is not None]
    if not tokens:
        if isinstance(tokenizer.post_processor, processors.TemplateProcessing):
            tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
        return
    single = f"{f'{begin} ' if begin else ''}$A{f' {end}' if end else ''}"
    pair = f"{single} {f'{begin}:1 ' if begin else ''}$B:1{f' {end}:1' if end else ''}"
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None
