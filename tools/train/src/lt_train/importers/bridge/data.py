"""Translate Megatron-Bridge's dataset: its files, its sample order and its vocabulary."""

from typing import Any

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.vocabulary import padding

ORDER = "lt-train orders samples as Megatron's dataloader_type single"


def translate(ledger: Ledger) -> None:
    _files(ledger)
    if ledger.get("vocab_size") is None and ledger.peek("tokenizer.tokenizer_type") == "NullTokenizer":
        ledger.carry("tokenizer.vocab_size", "vocab_size")
    seed, data_seed = ledger.get("seed"), ledger.take("dataset.random_seed")
    if data_seed is not None:
        effect = Effect.NONE if data_seed == (seed if seed is not None else 1234) else Effect.RESULT
        ledger.drop_value("dataset.random_seed", data_seed, "the seed of the run orders the data", effect)
    kind = ledger.take("dataset.dataloader_type")
    if kind is not None:
        ledger.drop_value("dataset.dataloader_type", kind, ORDER, Effect.NONE if kind == "single" else Effect.RESULT)
    if kind != "cyclic":
        ledger.drop("dataset.data_sharding", "it belongs to dataloader_type cyclic")
    for name in ("dataset.skip_getting_attention_mask_from_dataset",):
        effect = Effect.RESULT if ledger.get("reset_attention_mask") else Effect.NONE
        ledger.drop_value(name, ledger.take(name), "attention is causal without a mask, too", effect)
    masked = ledger.take("dataset.create_attention_mask")
    if masked is not None:
        is_lost = masked is False and ledger.get("reset_attention_mask")
        reason = "lt-train crosses no document with --reset-attention-mask"
        ledger.drop_value("dataset.create_attention_mask", masked, reason, Effect.RESULT if is_lost else Effect.NONE)
    for name, option in (("eval_global_batch_size", "global_batch_size"), ("eval_micro_batch_size", "micro_batch_size")):
        size = ledger.take(f"validation.{name}")
        effect = Effect.NONE if size == ledger.get(option) else Effect.RESULT
        ledger.drop_value(f"validation.{name}", size, f"lt-train evaluates with the batches of training: --{option}", effect)
    padding(ledger, "model.make_vocab_size_divisible_by", is_padded=ledger.take("model.should_pad_vocab", True) is not False)


def _files(ledger: Ledger) -> None:
    blend = ledger.take("dataset.blend")
    prefixes = _prefixes(blend)
    if prefixes and not ledger.get("mock_data"):
        ledger.set("data_path", prefixes, "dataset.blend")
    elif blend:
        ledger.drop_value("dataset.blend", blend, "it names no data of Megatron's format", Effect.RESULT)
    path = ledger.take("dataset.data_path")
    if ledger.get("data_path") or ledger.get("mock_data"):
        ledger.drop_value("dataset.data_path", path, "dataset.blend says it", Effect.NONE)
    elif isinstance(path, str | list) and path:
        ledger.set("data_path", path.split() if isinstance(path, str) else [str(word) for word in path], "dataset.data_path")


def _prefixes(blend: Any) -> list[str]:
    """Convert [[prefix, ...], [weight, ...]] into the words of --data-path. The weights may be None."""
    if not isinstance(blend, list) or len(blend) != 2 or not isinstance(blend[0], list):
        return []
    prefixes, weights = blend
    if weights is None:
        return [str(prefix) for prefix in prefixes]
    if not isinstance(weights, list) or len(weights) != len(prefixes):
        return []
    return [str(word) for pair in zip(weights, prefixes, strict=True) for word in pair]
