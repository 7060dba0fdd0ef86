"""A tokenizer with chat tokens, as transformers and lt-preprocess read it, and the templates of published models."""

import json
from importlib import metadata
from pathlib import Path

from transformers import PreTrainedTokenizerFast

DEMO_TOKENIZER = Path(__file__).parent / "demo" / "tokenizer"
# Of the templates in TRL, which ships those of published models and their variants for training.
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|begin_of_text|>", "<|end_of_text|>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<|start|>"),
    *("<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>", "<|user|>", "<|assistant|>", "<|system|>"),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|observation|>", "<|startoftext|>", "</s>", "<s>"),
    *("<\uff5cAssistant\uff5c>", "<\uff5cUser\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)


def write(directory: Path, template: str | None = None) -> Path:
    """Write the demo's tokenizer with SPECIAL_TOKENS and a chat template."""
    merges = (DEMO_TOKENIZER / "merges.txt").read_text(encoding="utf-8").splitlines()[1:]
    vocabulary = json.loads((DEMO_TOKENIZER / "vocab.json").read_text(encoding="utf-8"))
    numbers = {token: vocabulary.get(token, len(vocabulary) + place) for place, token in enumerate(SPECIAL_TOKENS)}
    flags = {"special": True, **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": token, **flags} for token, number in numbers.items()],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "bos_token": "<s>"}
    directory.mkdir(exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if template is not None:
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return directory


def stock(directory: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(directory))


def published_templates() -> dict[str, str]:
    """The chat templates in TRL, by file name without its ending."""
    files = metadata.files("trl") or []
    paths = [Path(str(file.locate())) for file in files if file.match("trl/chat_templates/*.jinja")]
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(paths)}
