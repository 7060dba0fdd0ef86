"""What becomes of every option of the trainers that lt-train imports, with another value than its default.

    python tests/train/option_table.py

Writes option_table.tsv: trainer, option, value, what becomes of it, the reason or the options of lt-train, the upstream line
that declares the option, and the line that reads it, from upstream_reads.py. The options are those of importers/upstream/*.json.
An option that another one switches on is tried with that other one, by SWITCHED_ON.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from lt_train.importers import hyperpod, megatron_bridge, megatron_lm, nemo, torchtitan
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Translation
from lt_train.importers.upstream import rows

TABLE = Path(__file__).with_suffix(".tsv")
READS = Path(__file__).with_name("option_reads.tsv")
REFUSED, DECIDED, CARRIED, SPEED, NOTHING = "refused", "decided", "carried", "speed", "nothing"
# What a line of upstream's source has to show.
SHOWN = (DECIDED, SPEED, NOTHING)
BECOMES = {
    Effect.MODEL: REFUSED,
    Effect.RUN: REFUSED,
    Effect.RESULT: DECIDED,
    Effect.SPEED: SPEED,
    Effect.NONE: NOTHING,
}
COMMAND = {
    "num_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 64,
    "max_position_embeddings": 64,
    "micro_batch_size": 1,
    "global_batch_size": 8,
    "train_iters": 10,
}
LLAMA = {"position_embedding_type": "rope", "normalization": "RMSNorm", "swiglu": True, "disable_bias_linear": True}
BASES: dict[str, dict[str, Any]] = {
    "megatron_lm": COMMAND,
    "megatron_bridge": {
        "_target_": "megatron.bridge.training.config.ConfigContainer",
        "model._target_": "megatron.bridge.models.gpt_provider.GPTModelProvider",
        "model.num_layers": 4,
        "train.train_iters": 100,
    },
    "torchtitan": {"model.name": "llama3", "model.flavor": "8B", "training.steps": 1000},
    "nemo": {
        "model.num_layers": 4,
        "model.hidden_size": 64,
        "model.num_attention_heads": 4,
        "trainer.max_steps": 100,
        "model.optim.name": "fused_adam",
        "model.optim.lr": 1e-4,
        "exp_manager.exp_dir": "/e",
    },
    "hyperpod": {"model.model_type": "llama_v3", "model.num_hidden_layers": 4, "trainer.max_steps": 100},
}
LOADING = (
    r"ckpt_step|(no_)?load_.*|finetune|use_checkpoint_.*|use_mp_args_.*|dist_ckpt_strictness|override_.*|exit_on_missing_.*"
    r"|reset_iteration|non_persistent_(ckpt_type|global_ckpt_dir)"
)
LATENT = r"(q|kv)_lora_rank|(qk|v|qk_pos_emb)_head_dim|mscale.*"
FP8 = {"model.fp8": "hybrid", "model.fp8_recipe": "tensorwise"}
# Values beside which an option is read.
SWITCHED_ON: dict[str, dict[str, dict[str, Any]]] = {
    "megatron_lm": {
        r"(inference_)?moe_.*|expert_.*": LLAMA | {"num_experts": 8},
        r"((no|disable)_)?fp8_(?!format).*": {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": "tensorwise"},
        r"muon_.*": {"optimizer": "muon", "muon_momentum": 0.95},
        LATENT: LLAMA | {"multi_latent_attention": True, "qk_layernorm": True},
        r"rotary_.*|rope_.*": LLAMA,
        LOADING: {"load": "/l"},
        r"sequence_parallel|tp_comm_.*": {"tensor_model_parallel_size": 2},
        r"(no_)?(rl|grpo|langrl)_.*|refit_method": {"perform_rl_step": True},
        r"null_tokenizer_.*": {"tokenizer_type": "NullTokenizer"},
        r"no_data_sharding": {"dataloader_type": "cyclic"},
        r"use_megatron_fsdp": {"bf16": True},
        r"exit_signal": {"exit_signal_handler": True},
        r"async_save|profile": {"save": "/s"},
        r".*loss_scale.*|hysteresis": {"fp16": True},
        r"lr_wsd_.*": {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 5},
        r"sft_.*": {"sft": True},
    },
    "megatron_bridge": {
        r"model\.(moe_|expert_).*": {"model.num_moe_experts": 8},
        r"mixed_precision\.fp8_.*": {"mixed_precision.fp8": "hybrid", "mixed_precision.fp8_recipe": "tensorwise"},
        r"(model|ddp|optimizer)\.fp8_.*": FP8,
        r"mixed_precision\.(.*loss_scale.*|hysteresis)": {"mixed_precision.fp16": True},
        r"optimizer\.muon_.*": {"optimizer.optimizer": "muon", "optimizer.muon_tp_mode": "duplicated"},
        rf"model\.({LATENT})": {"model.multi_latent_attention": True, "model.qk_layernorm": True},
        r"model\.(rotary|rope)_.*": {"model.position_embedding_type": "rope"},
        r"model\.(scale_factor|.*_freq_factor|old_context_len)": {
            "model.position_embedding_type": "rope",
            "model.rope_scaling": True,
        },
        rf"(checkpoint|scheduler)\.({LOADING})": {"checkpoint.load": "/l"},
        r"validation\..*": {"train.global_batch_size": 8, "validation.eval_iters": 5},
        r"optimizer\.(.*loss_scale.*|hysteresis)": {"model.fp16": True},
        r"tokenizer\..*": {"tokenizer.tokenizer_type": "NullTokenizer"},
        r"scheduler\.lr_wsd_.*": {"scheduler.lr_decay_style": "WSD"},
        r"(ddp|dist)\.use_megatron_fsdp": {"model.bf16": True},
        r"mixed_precision\.grad_reduce_in_fp32": {"mixed_precision.fp16": True},
        r"checkpoint\.async_save": {"checkpoint.save": "/s"},
        r"tensor_inspect\..*": {"tensor_inspect.enabled": True},
    },
    "torchtitan": {
        r"validation\..*": {"validation.enable": True, "validation.steps": 5, "training.local_batch_size": 8},
        r"(quantize\.linear\.)?float8\..*": {"model.converters": ["quantize.linear.float8"]},
        r"checkpoint\.initial_load_.*": {"checkpoint.enable": True, "checkpoint.initial_load_path": "/m"},
        r"checkpoint\.(?!enable).*": {"checkpoint.enable": True},
        r"fault_tolerance\..*": {"fault_tolerance.enable": True},
        r"metrics\.save_tb_folder": {"metrics.enable_tensorboard": True},
        r"metrics\.wandb_.*": {"metrics.enable_wandb": True},
        r"parallelism\.pipeline_parallel_.*": {"parallelism.pipeline_parallel_degree": 2},
        r"profiling\..*": {"checkpoint.enable": True},
    },
    "nemo": {
        r"model\.(moe_.*)": {"model.num_moe_experts": 8},
        r"model\.fp8(_.*)?": {"model.fp8": True, "model.fp8_hybrid": True, "model.fp8_e4m3": False},
        r"model\.rotary_.*": {"model.position_embedding_type": "rope"},
        r"model\.activations_checkpoint_(method|num_layers)": {"model.activations_checkpoint_granularity": "full"},
        r"exp_manager\.wandb_.*": {"exp_manager.create_wandb_logger": True},
        r"model\.apply_query_key_layer_scaling": {"trainer.precision": "16"},
        r"model\.transformer_engine": {"model.mcore_gpt": False, "model.activation": "swiglu"},
    },
    "hyperpod": {
        r"model\.(moe|num_local_experts|num_experts_per_tok).*": {"model.moe": True, "model.num_local_experts": 8},
        r"model\.rope_scaling\..*": {"model.rope_scaling.rope_type": "llama3", "model.rope_scaling.factor": 8.0},
        r"model\.peft\..*": {"model.peft.peft_type": "lora"},
        r"exp_manager\..*": {"exp_manager.exp_dir": "/e"},
        r"model\.val_batch_size|trainer\.(limit_val_batches|val_check_interval)": {
            "trainer.limit_val_batches": 5,
            "model.data.use_synthetic_data": True,
        },
        r"model\.shard_degree|trainer\.(devices|num_nodes)": {"model.sharding_strategy": "hybrid_shard"},
    },
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    trainer: str
    option: str
    value: Any
    becomes: str
    reason: str
    line: str

    def row(self) -> str:
        read = reads().get((self.trainer, self.option), "") if self.becomes in SHOWN else ""
        return "\t".join((self.trainer, self.option, json.dumps(self.value), self.becomes, self.reason, self.line, read))


def another(default: Any, choices: list[str] | None = None) -> Any:
    """A value of the same kind."""
    if choices:
        return next(choice for choice in choices if choice != default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + 1 if isinstance(default, int) else default / 2 or 0.5
    if isinstance(default, list):
        return [] if default else [7]
    return f"{default}x" if default else 3


def command_line(values: Mapping[str, Any]) -> Translation:
    words = ["pretrain_gpt.py"]
    for key, value in values.items():
        words.append(f"--{key.replace('_', '-')}")
        words += [] if value is True else [str(word) for word in (value if isinstance(value, list) else [value])]
    return megatron_lm.translate(words)


TRANSLATE: dict[str, Callable[[dict[str, Any]], Translation]] = {
    "megatron_lm": command_line,
    "megatron_bridge": megatron_bridge.translate,
    "torchtitan": torchtitan.translate,
    "nemo": nemo.translate,
    "hyperpod": hyperpod.translate,
}


def base_values(trainer: str, key: str) -> dict[str, Any]:
    switches = next((values for pattern, values in SWITCHED_ON[trainer].items() if re.fullmatch(pattern, key)), {})
    return BASES[trainer] | {name: value for name, value in switches.items() if name != key}


@functools.cache
def translate(trainer: str, values: str) -> Translation:
    return TRANSLATE[trainer](json.loads(values))


def outcome(trainer: str, key: str, value: Any, line: str) -> Outcome:
    """Compare the translation with `value` to the translation without the option."""
    base = base_values(trainer, key)
    before = translate(trainer, json.dumps({name: base[name] for name in base if name != key}))
    after = TRANSLATE[trainer]({**base, key: value})
    becomes, reason = _account(before, after, key)
    return Outcome(trainer, key, value, becomes, reason, line)


def _account(before: Translation, after: Translation, key: str) -> tuple[str, str]:
    refused = [entry for effect in (Effect.MODEL, Effect.RUN) for entry in after.lost(effect) if entry not in before.dropped]
    if refused:
        return REFUSED, "; ".join(dict.fromkeys(entry.reason for entry in refused))
    decided = [entry for entry in after.lost(Effect.RESULT) if entry not in before.dropped]
    if decided:
        return DECIDED, "; ".join(dict.fromkeys(entry.reason for entry in decided))
    changed = {name: value for name, value in after.options.items() if before.options.get(name, ...) != value}
    changed |= dict.fromkeys(name for name in before.options if name not in after.options)
    if changed:
        return CARRIED, ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in sorted(changed.items()))
    entry = next((entry for entry in after.dropped if entry.key == key), None)
    if entry is None:
        return CARRIED, "as the options beside it"
    return BECOMES[entry.effect], entry.reason


def values_of(trainer: str, entry: Any) -> tuple[Any, Any]:
    """The default of an option and another value; a switch of a command line has no default."""
    if trainer != "megatron_lm":
        return entry, another(entry)
    kind, default, *choices = entry
    if kind == "switch":
        return None, True
    other = another(default, *choices)
    return default, [other] if kind == "list" and not isinstance(other, list) else other


def outcomes(trainer: str) -> Iterator[Outcome]:
    lines = upstream(trainer)["lines"]
    for key, entry in rows.options(trainer).items():
        value = values_of(trainer, entry)[1]
        if not isinstance(entry, dict):
            yield outcome(trainer, key, value, lines[key])


@functools.cache
def reads() -> dict[tuple[str, str], str]:
    """The lines of option_reads.tsv by trainer and option."""
    rows = [line.split("\t") for line in READS.read_text().splitlines() if not line.startswith("#")] if READS.exists() else []
    return {(trainer, option): line for trainer, option, line in rows}


@functools.cache
def upstream(trainer: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(resources.files(rows.__package__).joinpath(f"{trainer}.json").read_text())
    return table


def main() -> None:
    table = [result.row() for trainer in BASES for result in outcomes(trainer)]
    TABLE.write_text(
        "# trainer\toption\tvalue\tbecomes\treason or options\tupstream line\tline that reads it\n" + "\n".join(table) + "\n"
    )


if __name__ == "__main__":
    main()
