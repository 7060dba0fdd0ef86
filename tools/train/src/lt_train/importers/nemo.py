"""Translate NeMo's YAML for GPT and Llama: `megatron_gpt_config.yaml` and its descendants, such as AWS's fork for Trainium."""

import os
import re
from typing import Any

from lt_shared.console import BadData
from lt_train.importers import evaluation
from lt_train.importers.effects import Effect
from lt_train.importers.layer_style import FUSED_GELU, ZERO_CENTERED, complete, drop_stored_otherwise
from lt_train.importers.ledger import NAMING, Ledger, Translation
from lt_train.importers.lightning import weight_average
from lt_train.importers.lightning.loop import length, validation
from lt_train.importers.lightning.optimizer import optimizer
from lt_train.importers.megatron import initialization as first_weights
from lt_train.importers.megatron.switches import NOT_DELAYED, UNREAD_MASK, WITHOUT_MASK
from lt_train.importers.upstream.megatron_options import SCALES_CANCEL
from lt_train.importers.upstream.nemo_keys import IN_ANY_CASE, row
from lt_train.importers.upstream.rows import options as upstream_options
from lt_train.importers.vocabulary import padding

SOURCE = "NeMo"
RENAMED = {
    "trainer.max_steps": "train_iters",
    "trainer.log_every_n_steps": "log_interval",
    "trainer.gradient_clip_val": "clip_grad",
    "model.seed": "seed",
    "model.micro_batch_size": "micro_batch_size",
    "model.global_batch_size": "global_batch_size",
    "model.rampup_batch_size": "rampup_batch_size",
    "model.tensor_model_parallel_size": "tensor_model_parallel_size",
    "model.pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "model.context_parallel_size": "context_parallel_size",
    "model.expert_model_parallel_size": "expert_model_parallel_size",
    "model.virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
    "model.encoder_seq_length": "seq_length",
    "model.max_position_embeddings": "max_position_embeddings",
    "model.num_layers": "num_layers",
    "model.hidden_size": "hidden_size",
    "model.ffn_hidden_size": "ffn_hidden_size",
    "model.num_attention_heads": "num_attention_heads",
    "model.num_query_groups": "num_query_groups",
    "model.num_kv_heads": "num_query_groups",
    "model.kv_channels": "kv_channels",
    "model.init_method_std": "init_method_std",
    "model.hidden_dropout": "hidden_dropout",
    "model.attention_dropout": "attention_dropout",
    "model.layernorm_epsilon": "norm_epsilon",
    "model.rotary_percentage": "rotary_percent",
    "model.rotary_base": "rotary_base",
    "model.native_amp_init_scale": "initial_loss_scale",
    "model.native_amp_growth_interval": "loss_scale_window",
    "model.hysteresis": "hysteresis",
    "model.activations_checkpoint_granularity": "recompute_granularity",
    "model.activations_checkpoint_method": "recompute_method",
    "model.activations_checkpoint_num_layers": "recompute_num_layers",
    "model.data.splits_string": "split",
    "model.data.num_workers": "num_workers",
    "model.data.index_mapping_dir": "data_cache_path",
    "model.optim.lr": "lr",
    "model.optim.weight_decay": "weight_decay",
    "model.optim.eps": "adam_eps",
    "model.num_moe_experts": "num_experts",
    "model.moe_router_topk": "moe_router_topk",
    "model.moe_aux_loss_coeff": "moe_aux_loss_coeff",
    "model.moe_ffn_hidden_size": "moe_ffn_hidden_size",
    "model.override_vocab_size": "vocab_size",
    "model.optim.sched.min_lr": "min_lr",
}
FLAGS = {
    "model.sequence_parallel": "sequence_parallel",
    "model.data.reset_position_ids": "reset_position_ids",
    "model.data.eod_mask_loss": "eod_mask_loss",
    "model.data.mock_dataset": "mock_data",
    "trainer.deterministic": "deterministic",
    "model.deterministic_mode": "deterministic",
    "model.wrap_with_zero": "use_distributed_optimizer",
    "model.qkv_bias": "add_qkv_bias",
    "model.moe_grouped_gemm": "moe_grouped_gemm",
    # Llama 3.1's frequency scaling with a factor of 8.
    "model.scale_positional_embedding": "use_rope_scaling",
}
# Lightning's names. The names without a suffix are the older ones.
PRECISIONS = {"bf16": "bf16", "bf16-mixed": "bf16", "16": "fp16", "16-mixed": "fp16"}
AMP = "model.megatron_amp_O2"
SCALED_SCORES = "model.apply_query_key_layer_scaling"
# nemo/collections/nlp/modules/common/megatron/transformer.py passes no other field to AutocastTransformerLayer.
ENGINE = "without mcore_gpt NeMo makes Transformer Engine's layer of it: LayerNorm, GELU, biases, no rotary positions"
OLD_LAYERS = "NeMo's own layers compute the same, and round otherwise"
SCALED = "lt-train draws the matrices that write to the residual stream narrower by the depth"
AUTOCAST = "NeMo keeps weights and the residual stream in 32 bits then, lt-train computes in 16"
RESUMES = "exp_manager.resume_if_exists"
OVERLAP = "tp_comm_overlap_cfg"
DEFAULT = "NeMo's default, as in lt-train"
# Dropout from megatron_gpt_model.py; Lightning's trainer clips no gradients by default.
DEFAULTS = {"hidden_dropout": 0.1, "attention_dropout": 0.1, "clip_grad": 0.0}
# Values of Lightning's trainer that limit nothing.
UNLIMITED = {
    "trainer.max_epochs": -1,
    "trainer.limit_train_batches": 1.0,
    "trainer.overfit_batches": 0.0,
    "trainer.accumulate_grad_batches": 1,
    "trainer.gradient_clip_algorithm": "norm",
    "trainer.check_val_every_n_epoch": 1,
    "model.ffn_dropout": 0.0,
}
# Key prefixes that only models other than GPT-like decoders have, with the kind of model.
OTHER_KINDS = {
    "model.bert_": "BERT",
    "model.mask_prob": "an encoder",
    "model.encoder.": "an encoder and a decoder",
    "model.enc_": "a retrieval model",
    "model.retro": "RETRO",
    "model.decoder.": "an encoder and a decoder",
    "model.unet": "a diffusion model",
    "model.mm_cfg.": "a vision-language model",
    "model.vision": "a vision model",
    "model.hyena": "Hyena",
    "model.task_templates": "prompt learning",
    "model.language_model_path": "prompt learning",
    "model.data.masked_lm_prob": "an encoder",
    "model.data.seq_length_dec": "an encoder and a decoder",
}
EXPERT_SETTINGS = ("model.moe_router_topk", "model.moe_aux_loss_coeff", "model.moe_ffn_hidden_size", "model.moe_grouped_gemm")
FINE_TUNING_KEY = re.compile(r"model\.data\.(train|validation|test)_ds\.")
UNKNOWN_EXPERTS = "a model with experts is named so, and no key has their number"
EXPERT_MODEL_NAME = re.compile(r"mixtral|(?<![a-z])moe(?![a-z])|\d+x\d+b")


def translate(values: dict[str, Any]) -> Translation:
    """Translate `values`, whose keys are dotted paths. Raises BadData for a model that is no GPT-like decoder."""
    for prefix, kind in OTHER_KINDS.items():
        if any(key.startswith(prefix) for key in values):
            raise BadData(f"{kind}: lt-train trains decoders like GPT's and Llama's", "lt-train models lists them")
    ledger = Ledger(SOURCE, values, row=row, defaults=upstream_options("nemo"))
    if (values.get("model.num_moe_experts") or 1) == 1:
        for key in ("model.num_moe_experts", *EXPERT_SETTINGS):
            ledger.drop(key, "the model has no experts")
    if values.get("model.activations_checkpoint_granularity") != "full":
        for key in ("model.activations_checkpoint_method", "model.activations_checkpoint_num_layers"):
            ledger.drop(key, "it belongs to full recomputation")
    if values.get("model.position_embedding_type") != "rope":
        for key in ("model.rotary_percentage", "model.rotary_base"):
            ledger.drop(key, "it belongs to rotary positions")
    if values.get("model.name") != "megatron_falcon_gpt":
        for key in (
            "model.mcore_customization_config.parallel_attention",
            "model.mcore_customization_config.new_decoder_architecture",
        ):
            ledger.drop(key, "Falcon's layers alone read it")
    _named_after_experts(ledger, values)
    if values.get("model.use_scaled_init_method") is True:
        ledger.drop("model.use_scaled_init_method", IN_ANY_CASE)
    else:
        first_weights.drop(ledger, "model.use_scaled_init_method", SCALED)
    precision(ledger, "trainer.precision", ledger.take("trainer.precision"))
    if ledger.peek(AMP) is False and (ledger.get("bf16") or ledger.get("fp16")):
        ledger.drop(AMP, AUTOCAST, Effect.RESULT)
    if ledger.peek(SCALED_SCORES) is True and ledger.get("fp16"):
        ledger.drop(SCALED_SCORES, SCALES_CANCEL, Effect.RESULT)
    _style(ledger)
    _layers(ledger)
    weight_average.translate(ledger)
    for key, option in RENAMED.items():
        if not _is_off(key, values.get(key)):
            ledger.carry(key, option)
        else:
            ledger.drop(key, "this value stands for none, as without the option")
    for key, option in FLAGS.items():
        ledger.flag(key, option)
    if (ledger.get("tensor_model_parallel_size") or 1) == 1 and ledger.get("sequence_parallel"):
        ledger.set("sequence_parallel", False)
    is_on = ledger.take("model.fp8", True)
    for key, form in (("model.fp8_e4m3", "e4m3"), ("model.fp8_hybrid", "hybrid")):
        # The format is stated in any case; `model.fp8` switches it on.
        if is_on and ledger.peek(key):
            ledger.take(key)
            ledger.set("fp8_format", form, key, "model.fp8")
        else:
            ledger.drop(key, "fp8 is off, or in another format")
    if ledger.get("fp8_format") is None:
        ledger.drop_value("model.fp8", values.get("model.fp8"), "no format of fp8 is on", Effect.NONE)
    fp8_scales(ledger)
    _data(ledger)
    _composition(ledger)
    epochs = ledger.peek("trainer.max_epochs")
    if isinstance(epochs, int | float) and epochs >= 1 and ledger.get("train_iters"):
        ledger.drop("trainer.max_epochs", "NeMo samples an epoch of trainer.max_steps")
    optimizer(ledger, "model.optim")
    for option, value in DEFAULTS.items():
        ledger.default(option, value)
    _saving(ledger, values)
    evaluation.switch_off_without_data(ledger, "trainer.limit_val_batches")
    validation(ledger)
    length(ledger)
    padding(ledger, "model.make_vocab_size_divisible_by")
    drop_stored_otherwise(ledger, "model.")
    drop_known(ledger)
    return ledger.close("not a key that NeMo's models have")


def _named_after_experts(ledger: Ledger, values: dict[str, Any]) -> None:
    """Report a model whose name says that it has experts, but whose file does not state their number."""
    if not values.get("model.num_moe_experts"):
        for key in NAMING:
            if key in values and EXPERT_MODEL_NAME.search(str(values[key]).lower()):
                ledger.drop_value(key, ledger.take(key), UNKNOWN_EXPERTS, Effect.MODEL)
                return


def _is_off(key: str, value: Any) -> bool:
    """Whether `value` is NeMo's way of switching the setting off."""
    if key == "trainer.max_steps" and isinstance(value, int | float):
        return value <= 0 or isinstance(value, float)
    return key == "model.virtual_pipeline_model_parallel_size" and value == 1


def precision(ledger: Ledger, key: str, value: Any) -> None:
    """Carry Lightning's precision `value` over as --bf16 or --fp16."""
    kind = "" if value is None else str(value).lower()
    option = PRECISIONS.get(kind.removesuffix("-true"))
    if option:
        ledger.set(option, True, key)
        if kind.endswith("-true"):
            ledger.drop_value(key, kind, "weights and optimizer stay in 32 bits in lt-train, there they are in 16", Effect.RUN)
    elif kind in ("32", "32-true"):
        ledger.drop_value(key, kind, "as without --bf16", Effect.NONE)
    elif kind:
        ledger.drop_value(key, kind, "lt-train takes bf16, 16 or 32 there")


def fp8_scales(ledger: Ledger) -> None:
    """Drop the settings of fp8 scales: how a GEMM's scale follows from the amax of earlier steps, and of which ranks."""
    names = ("fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_interval", "fp8_margin", "tp_only_amax_red")
    for key in (f"model.{name}" for name in names):
        if ledger.get("fp8_format"):
            ledger.drop_value(key, ledger.take(key), NOT_DELAYED, Effect.RESULT)
        else:
            ledger.drop(key, "fp8 is off")
    wgrad = ledger.take("model.fp8_wgrad")
    if wgrad is not None:
        is_lost = wgrad is False and ledger.get("fp8_format")
        reason = "gradients of weights are in fp8, too, if there is any"
        ledger.drop_value("model.fp8_wgrad", wgrad, reason, Effect.RUN if is_lost else Effect.NONE)


def drop_known(ledger: Ledger) -> None:
    """Drop keys with NeMo's default, and keys that the table `row` names."""
    for key in ledger.remaining_keys():
        value, table_row = ledger.peek(key), row(key)
        if ledger.is_default(key, value):
            ledger.drop(key, DEFAULT)
        elif table_row and value is True and key == RESUMES:
            ledger.drop(key, "so does lt-train")
        elif table_row and (value is None or (value is False and key != RESUMES) or value == unlimited_value(key)):
            ledger.drop(key, "it is off")
        elif table_row:
            ledger.drop(key, table_row.reason, table_row.effect)


def unlimited_value(key: str) -> Any:
    """Return the value that makes `key` of Lightning's trainer limit nothing."""
    return UNLIMITED.get(key, "")


def tensorboard(ledger: Ledger, directory: str | None) -> None:
    key = "exp_manager.create_tensorboard_logger"
    if directory:
        ledger.set("tensorboard_dir", os.path.join(directory, "tensorboard"), key)
    else:
        ledger.drop_value(key, True, "no directory to write to: add --tensorboard-dir")


def _style(ledger: Ledger) -> None:
    width = ledger.take_number("model.sliding_window_size")
    if width:
        ledger.carry_value("model.sliding_window_size", "window_size", f"{int(width) - 1},0")
    window = ledger.take("model.window_size")
    if isinstance(window, list) and len(window) == 2 and window[0] >= 0:
        ledger.carry_value("model.window_size", "window_size", f"{window[0]},{window[1]}")
    position = ledger.take("model.position_embedding_type", "learned_absolute")
    if position == "rope":
        ledger.set("position_embedding_type", "rope", "model.position_embedding_type")
    elif position != "learned_absolute":
        ledger.drop_value(
            "model.position_embedding_type", position, "lt-train takes rope or learned_absolute there", Effect.MODEL
        )
    norm = ledger.take_text("model.normalization", "layernorm").lower()
    if norm == "layernorm1p":
        ledger.drop_value("model.normalization", norm, ZERO_CENTERED, Effect.RESULT)
    elif norm == "rmsnorm":
        ledger.set("normalization", "RMSNorm", "model.normalization")
    elif norm != "layernorm":
        ledger.drop_value("model.normalization", norm, "lt-train has LayerNorm and RMSNorm", Effect.MODEL)
    activation = ledger.take("model.activation", "gelu")
    if activation in ("swiglu", "fast-swiglu"):
        ledger.set("swiglu", True, "model.activation")
    elif activation != "gelu":
        ledger.drop_value("model.activation", activation, "lt-train has GELU and SwiGLU", Effect.MODEL)
    if ledger.take("model.bias", ledger.peek("model.has_bias")) is False:
        ledger.set("disable_bias_linear", True, "model.bias", "model.has_bias")
    ledger.drop("model.has_bias", "model.bias says it")
    if ledger.take("model.bias_activation_fusion", True) is False:
        effect = Effect.RESULT if activation == "gelu" else Effect.SPEED
        ledger.drop_value("model.bias_activation_fusion", False, FUSED_GELU, effect)
    complete(ledger, "model.bias")
    if ledger.take("model.share_embeddings_and_output_weights", True) is False:
        ledger.set("untie_embeddings_and_output_weights", True, "model.share_embeddings_and_output_weights")


def _layers(ledger: Ledger) -> None:
    """Report the layers that NeMo makes without megatron-core. Carry the style over first: Transformer Engine ignores it."""
    if ledger.peek("model.mcore_gpt") is False:
        style = ("normalization", "swiglu", "disable_bias_linear", "position_embedding_type")
        if ledger.peek("model.transformer_engine") is True and any(map(ledger.get, style)):
            ledger.drop("model.transformer_engine", ENGINE, Effect.MODEL)
        ledger.drop("model.mcore_gpt", OLD_LAYERS, Effect.RESULT)


def _data(ledger: Ledger) -> None:
    if ledger.has("model.data.data_prefix"):
        for key in [key for key in ledger.remaining_keys() if FINE_TUNING_KEY.match(key)]:
            ledger.drop(key, "fine-tuning alone reads it: pretraining reads model.data.data_prefix")
    prefix = ledger.take("model.data.data_prefix")
    if isinstance(prefix, list) and prefix:
        ledger.set("data_path", [str(word) for word in prefix], "model.data.data_prefix")
    elif isinstance(prefix, str) and prefix != "???":
        ledger.set("data_path", prefix.split(), "model.data.data_prefix")
    elif prefix:
        ledger.drop_value("model.data.data_prefix", prefix, "it names no data")
    kind = ledger.take_text("model.data.data_impl")
    if kind is not None:
        reason = "lt-train reads Megatron's mmap format"
        ledger.drop_value("model.data.data_impl", kind, reason, Effect.NONE if kind == "mmap" else Effect.RESULT)
    _mask(ledger)
    if not ledger.peek("model.data.add_fim"):
        for key in [key for key in ledger.remaining_keys() if key.startswith("model.data.fim")]:
            ledger.drop(key, "model.data.add_fim is off")
    if ledger.get("seq_length") is None:
        ledger.carry("model.data.seq_length", "seq_length")
    else:
        ledger.drop("model.data.seq_length", "model.encoder_seq_length says it")


def _composition(ledger: Ledger) -> None:
    """Drop Hydra's list of files to compose if it names nothing but the overlap of communication, which is another file."""
    entries = ledger.peek("defaults")
    is_harmless = isinstance(entries, list) and all(
        entry == "_self_" or (isinstance(entry, dict) and all(OVERLAP in str(name) for name in entry)) for entry in entries
    )
    if is_harmless:
        ledger.drop("defaults", "it names how ranks communicate", Effect.SPEED)


def _mask(ledger: Ledger) -> None:
    """Carry reset_attention_mask over only if the step takes the data set's mask, which is not so by default."""
    fused, reset = "model.get_attention_mask_from_fusion", "model.data.reset_attention_mask"
    if ledger.take(fused, True) is False:
        ledger.flag(reset, "reset_attention_mask")
        if ledger.get("reset_attention_mask") and ledger.original_values().get("model.transformer_engine") is True:
            ledger.drop_value(reset, True, UNREAD_MASK, Effect.RESULT)
        ledger.drop_value(fused, False, "the mask is that of --reset-attention-mask, or causal", Effect.NONE)
    else:
        ledger.drop(reset, WITHOUT_MASK)
        ledger.drop_value(fused, ledger.original_values().get(fused), "attention is causal", Effect.NONE)


def _saving(ledger: Ledger, values: dict[str, Any]) -> None:
    enabled = ledger.take("exp_manager.create_checkpoint_callback", True)
    keys = ("exp_manager.explicit_log_dir", "exp_manager.exp_dir", "exp_manager.create_checkpoint_callback")
    directories = [ledger.take_text(key) for key in keys[:2]]
    directory = next((directory for directory in directories if directory), None)
    if enabled is False:
        ledger.drop_value("exp_manager.create_checkpoint_callback", False, "nothing is saved: add --save", Effect.NONE)
    interval = ledger.take_number("exp_manager.checkpoint_callback_params.every_n_train_steps")
    if enabled and directory:
        ledger.set("save", os.path.join(directory, "checkpoints"), *keys)
        if interval:
            ledger.carry_value("exp_manager.checkpoint_callback_params.every_n_train_steps", "save_interval", interval)
    elif interval:
        ledger.drop_value("exp_manager.checkpoint_callback_params.every_n_train_steps", interval, "no directory to save to")
    if ledger.take("exp_manager.create_tensorboard_logger"):
        tensorboard(ledger, directory)
    if ledger.peek("exp_manager.create_wandb_logger"):
        ledger.drop("exp_manager.create_wandb_logger", "--wandb-project says it")
        ledger.carry("exp_manager.wandb_logger_kwargs.project", "wandb_project")
        ledger.carry("exp_manager.wandb_logger_kwargs.name", "wandb_exp_name")
