"""Translate Megatron-Bridge's dataset: its files, its sample order and its vocabulary."""

from typing import Any

from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger
from lt_train.importers.megatron.switches import UNREAD_MASK, WITHOUT_MASK
from lt_train.importers.vocabulary import PADDED, padding

SKIPPED_MASK = "dataset.skip_getting_attention_mask_from_dataset"
CAUSAL = "attention is causal, as without --reset-attention-mask"
ORDER = "lt-train orders samples as Megatron's dataloader_type single"


def translate(ledger: Ledger) -> None:
    _files(ledger)
    # A published model brings its vocabulary, unless the recipe asks for the tokenizer's.
    has_vocabulary = ledger.get("vocab_size") is not None or ledger.get("model")
    is_replaced = ledger.peek("tokenizer.use_tokenizer_vocab_size") is True
    if ledger.peek("tokenizer.tokenizer_type") == "NullTokenizer" and (is_replaced or not has_vocabulary):
        ledger.carry("tokenizer.vocab_size", "vocab_size")
    seed, data_seed = ledger.get("seed"), ledger.take("dataset.random_seed")
    if data_seed is not None:
        effect = Effect.NONE if data_seed == (seed if seed is not None else 1234) else Effect.RUN
        ledger.drop_value("dataset.random_seed", data_seed, "the seed of the run orders the data", effect)
    kind = ledger.take("dataset.dataloader_type")
    if kind is not None:
        ledger.drop_value("dataset.dataloader_type", kind, ORDER, Effect.NONE if kind == "single" else Effect.RUN)
    if kind != "cyclic":
        ledger.drop("dataset.data_sharding", "it belongs to dataloader_type cyclic")
    _mask(ledger)
    _evaluated_batches(ledger)
    padded = ledger.take("model.should_pad_vocab")
    if padded:
        ledger.drop_value("model.should_pad_vocab", True, PADDED, Effect.NONE)
    padding(ledger, "model.make_vocab_size_divisible_by", is_padded=padded is not False)


def take_tokenizers_vocabulary(ledger: Ledger) -> None:
    """Leave the model's vocabulary to the data if Megatron-Bridge takes the tokenizer's, and pads it."""
    if ledger.peek("tokenizer.use_tokenizer_vocab_size") is True:
        for key in ("model.vocab_size", "model.should_pad_vocab"):
            ledger.drop(key, "tokenizer.use_tokenizer_vocab_size takes the tokenizer's, as lt-train does from the data")


def _mask(ledger: Ledger) -> None:
    """Carry reset_attention_mask over only if the step takes the data set's mask, which is not so by default.

    gpt_step.py passes no mask unless skip_getting_attention_mask_from_dataset is False.
    """
    reset = ledger.take("dataset.reset_attention_mask")
    is_skipped = ledger.take(SKIPPED_MASK, True) is not False
    is_made = ledger.take("dataset.create_attention_mask", True) is not False
    if reset and is_made and not is_skipped:
        ledger.set("reset_attention_mask", True, "dataset.reset_attention_mask", SKIPPED_MASK, "dataset.create_attention_mask")
        if ledger.original_values().get("model.transformer_impl") != "local":
            ledger.drop_value("dataset.reset_attention_mask", True, UNREAD_MASK, Effect.RESULT)
        return
    ledger.drop_value("dataset.reset_attention_mask", reset, WITHOUT_MASK, Effect.NONE)
    for key in (SKIPPED_MASK, "dataset.create_attention_mask"):
        if key in ledger.original_values():
            ledger.drop_value(key, ledger.original_values()[key], CAUSAL, Effect.NONE)


def _evaluated_batches(ledger: Ledger) -> None:
    """Evaluate as many samples as the original, if they are whole global batches of lt-train."""
    key, batch = "validation.eval_global_batch_size", ledger.get("global_batch_size")
    size, steps = ledger.take_number(key), ledger.get("eval_iters")
    if size is None or size == batch or not steps:
        ledger.drop_value(key, size, "lt-train evaluates global batches of training", Effect.NONE)
    elif batch and steps * size % batch == 0:
        ledger.carry_value(key, "eval_iters", steps * size // batch)
    else:
        ledger.drop_value(key, size, "lt-train evaluates whole global batches: --global-batch-size", Effect.RUN)
    key = "validation.eval_micro_batch_size"
    reason = "the loss of an evaluation is a mean over its samples, whatever the micro batches"
    ledger.drop_value(key, ledger.take(key), reason, Effect.NONE)


def _files(ledger: Ledger) -> None:
    blend = ledger.take("dataset.blend")
    prefixes = _prefixes(blend)
    if prefixes and not ledger.get("mock_data"):
        ledger.set("data_path", prefixes, "dataset.blend")
    elif blend:
        ledger.drop_value("dataset.blend", blend, "it names no data of Megatron's format", Effect.RUN)
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
