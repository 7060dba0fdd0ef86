"""Translate nanotron's YAML for decoders like Llama, by way of Megatron-LM's options."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_shared.console import BadData
from lt_train.importers import megatron_lm
from lt_train.importers.composed.files import fill_environment, merge
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Dropped, Translation, flatten

SOURCE = "nanotron"
STYLES = {"linear": "linear", "cosine": "cosine", "1-sqrt": "minus_sqrt"}
DECAYS_ALL = "nanotron decays the weights of norms, too; lt-train, as Megatron-LM, does not"
OF_DATA = "data is tokenized first: lt-preprocess, then DATA"
FIRST_WEIGHTS = "nanotron draws the layers' outputs narrower by the depth in its own way; lt-train as Megatron-LM"
KINDS = ("is_llama_config", "is_qwen2_config")
# Keys of model_config that say nothing about the network, and those with the values that lt-train's Llama has.
UNREAD = ("bos_token_id", "eos_token_id", "pad_token_id", "pretraining_tp", "use_cache", "initializer_range", *KINDS)
USUAL = {"hidden_act": "silu", "rope_scaling": None, "attention_bias": False, "sliding_window_size": None, "no_rope_layer": None}
KERNELS = (
    "_attn_implementation",
    "flex_attention_mask",
    "_fused_rotary_emb",
    "_fused_rms_norm",
    "_use_qkv_packed",
    "_use_doc_masking",
)
# Sections that change no step.
UNREAD_EVALUATION = "nanotron evaluates nothing; if your fork does, give --eval-interval and --eval-iters"
OF_MACHINE = ("profiler", "lighteval", "s3_upload", "metrics_logging")
SCHEDULE = "optimizer.learning_rate_scheduler"


def is_configuration(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("model"), dict) and isinstance(content.get("tokens"), dict) and "parallelism" in content


def translate(content: dict[str, Any], overrides: Mapping[str, Any]) -> Translation:
    """Translate a configuration. `overrides` are dotted keys. Raises BadData for a value of another kind."""
    for key, value in overrides.items():
        *path, last = key.split(".")
        part: dict[str, Any] = {last: value}
        for name in reversed(path):
            part = {name: part}
        content = merge(content, part)
    return _Reader(flatten(fill_environment(content))).translate()


class _Reader:
    """The dotted keys of a configuration, the words that they become, and the keys that become none."""

    def __init__(self, values: dict[str, Any]):
        self._values = values
        self._words: list[str] = ["pretrain_gpt.py"]
        self._dropped: list[Dropped] = []

    def translate(self) -> Translation:
        self._model()
        self._tokens()
        self._optimizer()
        self._schedule()
        self._run()
        for key, value in self._values.items():
            section = key.partition(".")[0]
            is_harmless = section in (*OF_MACHINE, "logging", "tokenizer", "data_stages", "general") or value in (
                None,
                False,
                [],
                {},
            )
            self._drop(key, value, "lt-train has no such setting", Effect.NONE if is_harmless else Effect.RUN)
        translation = megatron_lm.translate(self._words, SOURCE)
        return dataclasses.replace(translation, dropped=(*translation.dropped, *self._dropped))

    def _take(self, key: str, default: Any = None) -> Any:
        value = self._values.pop(key, None)
        return default if value is None else value

    def _number(self, key: str, default: Any = None) -> Any:
        value = self._take(key, default)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise BadData(f"{key}: {value!r} is no number")
        return value

    def _add(self, option: str, *values: Any) -> None:
        if not values or values[0] is not None:
            self._words += [f"--{option}", *map(str, values)]

    def _drop(self, key: str, value: Any, reason: str, effect: Effect) -> None:
        if value is None:
            return
        self._dropped.append(Dropped(key, value, reason, effect))

    def _model(self) -> None:
        prefix = "model.model_config."
        if not any(self._values.get(prefix + kind) for kind in KINDS):
            raise BadData("no model like Llama: model.model_config has not is_llama_config", "lt-train models lists the models")
        for name in UNREAD:
            self._values.pop(prefix + name, None)
        for name in KERNELS:
            value = self._take(prefix + name)
            if name == "_use_doc_masking" and value:
                self._add("reset-attention-mask")
        for name, usual in USUAL.items():
            value = self._values.pop(prefix + name, usual)
            if value != usual:
                self._drop(prefix + name, value, "lt-train's Llama has another one", Effect.MODEL)
        if not self._values.get(f"{prefix}z_loss_enabled"):
            self._values.pop(f"{prefix}z_loss_coefficient", None)
        heads = self._number(prefix + "num_attention_heads", 32)
        for name, option, default in (
            ("num_hidden_layers", "num-layers", 32),
            ("hidden_size", "hidden-size", 4096),
            ("intermediate_size", "ffn-hidden-size", 11008),
            ("max_position_embeddings", "max-position-embeddings", 2048),
            ("rms_norm_eps", "norm-epsilon", 1e-6),
            ("rope_theta", "rotary-base", 10000),
            ("vocab_size", "vocab-size", 32000),
        ):
            value = self._number(prefix + name, default)
            self._add(option, int(value) if isinstance(value, float) and value.is_integer() else value)
        groups = self._number(prefix + "num_key_value_heads", heads)
        self._add("num-attention-heads", heads)
        if groups != heads:
            self._words += ["--group-query-attention", "--num-query-groups", str(groups)]
        self._words += ["--swiglu", "--disable-bias-linear", "--normalization", "RMSNorm", "--position-embedding-type", "rope"]
        self._words += ["--hidden-dropout", "0", "--attention-dropout", "0"]
        if not self._take(prefix + "tie_word_embeddings", False):
            self._add("untie-embeddings-and-output-weights")
        if self._take(prefix + "rope_interleaved", False):
            self._add("rotary-interleaved")
        scaling = self._take("model.init_method.scaling_method")
        self._drop("model.init_method.scaling_method", scaling, FIRST_WEIGHTS, Effect.RESULT)
        deviation = self._number("model.init_method.std")
        self._add("init-method-std", deviation)
        if deviation is not None:
            self._drop("model.init_method", deviation, FIRST_WEIGHTS, Effect.RESULT)
        kind = self._take("model.dtype", "bfloat16")
        if kind in ("bfloat16", "float16"):
            self._add("bf16" if kind == "bfloat16" else "fp16")
        elif kind != "float32":
            self._drop("model.dtype", kind, "lt-train computes in bfloat16, float16 or float32", Effect.RUN)
        for name in ("ddp_bucket_cap_mb", "make_vocab_size_divisible_by"):
            self._drop(f"model.{name}", self._take(f"model.{name}"), "lt-train pads and sends in its own way", Effect.NONE)

    def _tokens(self) -> None:
        micro = self._number("tokens.micro_batch_size")
        copies = self._number("parallelism.dp", 1)
        accumulated = self._number("tokens.batch_accumulation_per_replica", 1)
        self._add("micro-batch-size", micro)
        self._add("global-batch-size", None if micro is None else micro * accumulated * copies)
        self._add("seq-length", self._number("tokens.sequence_length"))
        self._add("train-iters", self._number("tokens.train_steps"))
        interval, batches = self._number("tokens.val_check_interval", -1), self._number("tokens.limit_val_batches", 0)
        if interval > 0 and batches > 0:
            # DistributedTrainer.validation_step has no caller (huggingface/nanotron, since 2023).
            self._drop("tokens.limit_val_batches", batches, UNREAD_EVALUATION, Effect.RESULT)
        self._add("eval-iters", 0)
        self._values.pop("tokens.limit_test_batches", None)
        for name, option in (
            ("tp", "tensor-model-parallel-size"),
            ("pp", "pipeline-model-parallel-size"),
            ("context_parallel_size", "context-parallel-size"),
            ("expert_parallel_size", "expert-model-parallel-size"),
        ):
            size = self._number(f"parallelism.{name}", 1)
            self._add(option, size)
            if name == "tp" and size > 1 and self._values.get("parallelism.tp_mode") == "REDUCE_SCATTER":
                self._add("sequence-parallel")
        for name in ("tp_mode", "pp_engine", "tp_linear_async_communication", "recompute_layer", "tp_recompute_allgather"):
            self._drop(f"parallelism.{name}", self._take(f"parallelism.{name}"), "it changes when tensors are sent", Effect.SPEED)

    def _optimizer(self) -> None:
        prefix = "optimizer.optimizer_factory."
        name = str(self._take(prefix + "name", "adamW"))
        if name.lower() != "adamw":
            self._drop(prefix + "name", name, "lt-train has AdamW and Muon", Effect.RUN)
        for key, option, default in (
            (prefix + "adam_beta1", "adam-beta1", self._number("optimizer.adam_beta1", 0.9)),
            (prefix + "adam_beta2", "adam-beta2", self._number("optimizer.adam_beta2", 0.999)),
            (prefix + "adam_eps", "adam-eps", self._number("optimizer.adam_eps", 1e-8)),
            ("optimizer.clip_grad", "clip-grad", 0.0),
            ("optimizer.weight_decay", "weight-decay", 0.0),
        ):
            value = self._number(key, default)
            self._add(option, value)
            if option == "weight-decay" and value:
                self._drop(key, value, DECAYS_ALL, Effect.RESULT)
        if self._number("optimizer.zero_stage", 0) > 0:
            self._add("use-distributed-optimizer")
        if self._take("optimizer.accumulate_grad_in_fp32", True) is False:
            self._add("grad-reduce-in-bf16")
        for key in (f"{prefix}torch_adam_is_fused", "optimizer.torch_adam_is_fused"):
            self._drop(key, self._take(key), "AdamW is one kernel", Effect.SPEED)

    def _schedule(self) -> None:
        """A warm-up, a constant rate until `lr_decay_starting_step`, a decay over `lr_decay_steps`, then the lowest rate."""
        steps = self._words[self._words.index("--train-iters") + 1] if "--train-iters" in self._words else None
        warmup = self._number(f"{SCHEDULE}.lr_warmup_steps", 0)
        style = str(self._take(f"{SCHEDULE}.lr_decay_style", "linear"))
        stated = self._number(f"{SCHEDULE}.lr_decay_starting_step")
        # nanotron takes both off the run's length, though the decay begins at the second.
        remaining = None if steps is None else int(steps) - warmup - (stated or 0)
        length = self._number(f"{SCHEDULE}.lr_decay_steps", remaining)
        start = warmup if stated is None else stated
        rate = self._number(f"{SCHEDULE}.learning_rate")
        self._add("lr", rate)
        self._add("min-lr", self._number(f"{SCHEDULE}.min_decay_lr", rate))
        self._add("lr-warmup-iters", warmup)
        warmup_style = self._take(f"{SCHEDULE}.lr_warmup_style", "linear")
        if (warmup and warmup_style != "linear") or style not in STYLES or length is None:
            self._drop(f"{SCHEDULE}.lr_decay_style", f"{warmup_style}, {style}", "lt-train has other schedules", Effect.RUN)
            return
        if length <= 0:
            self._add("lr-decay-style", "constant")
        elif start > warmup or STYLES[style] == "minus_sqrt":
            self._words += ["--lr-decay-style", "WSD", "--lr-wsd-decay-style", STYLES[style], "--lr-wsd-decay-iters", str(length)]
        else:
            self._add("lr-decay-style", STYLES[style])
        self._add("lr-decay-iters", start + length if length > 0 else None)

    def _run(self) -> None:
        self._add("save", self._take("checkpoints.checkpoints_path"))
        self._add("save-interval", self._number("checkpoints.checkpoint_interval"))
        if not self._values.get("checkpoints.resume_checkpoint_path"):
            for name in ("load_lr_scheduler", "load_optimizer"):
                self._values.pop(f"checkpoints.{name}", None)
        for name in ("checkpoints_path_is_shared_file_system", "save_initial_state", "save_final_state"):
            self._values.pop(f"checkpoints.{name}", None)
        self._add("seed", self._number("general.seed", 42))
        self._add("log-interval", self._number("logging.iteration_step_info_interval"))
        stages = self._take("data_stages", [])
        if isinstance(stages, list) and len(stages) > 1:
            self._drop("data_stages", len(stages), "give DATA of each stage with --data-schedule", Effect.RESULT)
        elif stages:
            self._drop("data_stages", "one stage", OF_DATA, Effect.NONE)
