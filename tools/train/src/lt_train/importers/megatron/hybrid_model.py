"""Translate the layer pattern of Megatron-LM's pretrain_hybrid.py, which was pretrain_mamba.py until 2026.

A pattern of attention and MLP in turns is an ordinary transformer, and numbers of layers count attention and MLP separately
there. With Mamba-2, every layer of the pattern is a layer of lt-train.
"""

from collections.abc import Sequence
from typing import Any

from lt_shared.console import BadConfig, BadData
from lt_shared.models import hybrid_pattern
from lt_shared.models.architecture.sizes import LATENT_ATTENTION, MAMBA, NO_MIXER
from lt_shared.models.hybrid_pattern import Pattern
from lt_train.config.settings.checkpointing import HYBRID
from lt_train.config.settings.model import experts
from lt_train.config.settings.model.mamba import PATTERN
from lt_train.config.settings.pipeline_layout import LAYOUT_NAME, layout_text
from lt_train.importers.effects import Effect
from lt_train.importers.ledger import Ledger

PROGRAM = "pretrain_hybrid.py"
PROGRAMS = (PROGRAM, "pretrain_mamba.py")
OF_PATTERN = "--hybrid-layer-pattern says it"
UNSCALED = "HybridModel has no scaling of RoPE, and ignores it"
# Options that count layers of HybridModel: twice the layers of lt-train.
COUNTS = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "recompute_num_layers")


def is_hybrid(program: str) -> bool:
    return program.rpartition("/")[2] in PROGRAMS


def translate(ledger: Ledger, program: str) -> None:
    """Translate the pattern of `program`, if it is one of `PROGRAMS`.

    Raises BadData, naming the kind of layer, for a pattern that lt-train cannot train.
    """
    if not is_hybrid(program):
        return
    key = next((name for name in hybrid_pattern.ARGUMENTS if ledger.has(name)), None)
    if key is None:
        raise BadData(
            f"{program.rpartition('/')[2]} without --hybrid-layer-pattern has Mamba-2 layers alone, which is not supported",
            "name the layers: --hybrid-layer-pattern M-M*-",
        )
    text = "".join(ledger.take(key))
    has_mamba = hybrid_pattern.MIXERS[MAMBA] in text
    try:
        pattern = hybrid_pattern.parse(text, f"--{key.replace('_', '-')}", with_mamba=has_mamba, has_single_parts=has_mamba)
    except BadConfig as error:
        raise BadData(str(error), error.hint) from None
    ledger.drop("num_layers", OF_PATTERN)
    if has_mamba:
        ledger.set(PATTERN, text.replace(hybrid_pattern.STAGE_BORDER, ""), key)
    ledger.set("num_layers", len(pattern.blocks), key)
    ledger.set("ckpt_layout", HYBRID, key)
    if ledger.peek("position_embedding_type") == [hybrid_pattern.WITHOUT_POSITIONS]:
        ledger.take("position_embedding_type")
        ledger.set("position_embedding_type", "rope", "position_embedding_type")
        ledger.drop("no_rope_freq", "without positions no layer rotates")
        ledger.set("no_rope_freq", 1, "position_embedding_type")
    _unrotated(ledger, pattern, text)
    ledger.drop("is_hybrid_model", OF_PATTERN)
    if tuple(ledger.peek("spec") or ()) in hybrid_pattern.SPECS:
        ledger.drop("spec", "lt-train has layers of its own")
    _attention(ledger, pattern, text)
    _experts(ledger, pattern, text)
    _stages(ledger, pattern, key, text)
    for name in ("hybrid_attention_ratio", "hybrid_mlp_ratio"):
        ledger.drop(name, OF_PATTERN)
    for name in ("use_rope_scaling", "rope_scaling_factor"):
        ledger.drop(name, UNSCALED)
    if not has_mamba:
        for name in COUNTS:
            _halve(ledger, name)


def _unrotated(ledger: Ledger, pattern: Pattern, text: str) -> None:
    """Count blocks instead of the layers of HybridModel in --no-rope-freq, a number or a list in Python."""
    if not ledger.has("no_rope_freq"):
        return
    words = "".join(ledger.take("no_rope_freq"))
    try:
        frequency = experts.layer_frequency(words, "no_rope_freq")
        unrotated = hybrid_pattern.blocks_without_rotation(frequency, pattern, f"the layer pattern {text!r:.80}")
    except BadConfig as error:
        raise BadData(str(error), error.hint) from None
    every = unrotated.index(1) + 1 if 1 in unrotated else None
    if every and unrotated == [int((block + 1) % every == 0) for block in range(len(unrotated))]:
        ledger.set("no_rope_freq", every, "no_rope_freq")
    elif every:
        reason = "lt-train has only every so many layers without rotation"
        ledger.drop_value("no_rope_freq", words, reason, Effect.MODEL)
    else:
        ledger.drop_value("no_rope_freq", words, "it names no layer with attention", Effect.NONE)


def _attention(ledger: Ledger, pattern: Pattern, text: str) -> None:
    kinds = {kind for kind, _ in pattern.blocks} - {MAMBA, NO_MIXER}
    if len(kinds) != 1 or (LATENT_ATTENTION not in kinds and ledger.has("multi_latent_attention")):
        raise BadData(
            f"the layer pattern {text!r:.80} has another kind of attention than the options", "use * or + for all layers"
        )
    if LATENT_ATTENTION in kinds and not ledger.has("multi_latent_attention"):
        raise BadData(f"the layer pattern {text!r:.80} has latent attention", "add --multi-latent-attention")


def _experts(ledger: Ledger, pattern: Pattern, text: str) -> None:
    frequency = pattern.expert_frequency
    if any(frequency) and not ledger.has("num_experts"):
        raise BadData(f"the layer pattern {text!r:.80} has experts", "add --num-experts")
    ledger.drop("moe_layer_freq", OF_PATTERN)
    if not any(frequency):
        ledger.drop("num_experts", "the layer pattern has no experts")
        return
    if pattern.has_single_parts:
        if len(pattern.layers_with(NO_MIXER)) != sum(frequency):
            raise BadData(f"the layer pattern {text!r:.80} has experts in some MLPs", "lt-train has them in all MLPs, or in none")
        return
    dense = frequency.index(1)
    if 0 in frequency[dense:]:
        raise BadData(f"the layer pattern {text!r:.80} has dense layers behind experts", "lt-train has dense layers first")
    if dense:
        ledger.set("moe_layer_freq", f"([0]*{dense}+[1]*{len(frequency) - dense})")


def _stages(ledger: Ledger, pattern: Pattern, key: str, text: str) -> None:
    """Carry the borders of the pipeline stages over."""
    sizes, ranks = pattern.stages, _whole(ledger.peek("pipeline_model_parallel_size")) or 1
    if not sizes:
        return
    if len(sizes) % ranks:
        raise BadData(f"the layer pattern {text!r:.80} has {len(sizes)} stages for {ranks} pipeline ranks", "use a multiple")
    if ranks == 1:
        return
    if len(set(sizes)) > 1:
        ledger.set(LAYOUT_NAME, layout_text(tuple(sizes), _whole(ledger.peek("mtp_num_layers")) or 0), key)
    elif len(sizes) > ranks:
        ledger.set("num_virtual_stages_per_pipeline_rank", len(sizes) // ranks, key)


def _halve(ledger: Ledger, name: str) -> None:
    """Count blocks instead of the layers of HybridModel."""
    if not ledger.has(name):
        return
    words = ledger.take(name)
    layers = _whole(words)
    if layers >= 2 and layers % 2 == 0:
        ledger.set(name, layers // 2, name)
    else:
        effect = Effect.NONE if name == "recompute_num_layers" else Effect.RUN
        ledger.drop_value(name, " ".join(words), "it ends between attention and MLP, and lt-train's layers have both", effect)


def _whole(words: Sequence[str] | Any) -> int:
    text = "".join(words or ())
    return int(text) if text.isdigit() and len(text) < 10 else 0
