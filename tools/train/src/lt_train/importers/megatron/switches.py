"""Options of Megatron-LM that another option switches on or off."""

from collections.abc import Sequence
from typing import Any

from lt_train.config.settings.precision import DELAYED
from lt_train.importers import routing
from lt_train.importers.effects import Effect
from lt_train.importers.layer_style import FUSED_GELU
from lt_train.importers.ledger import Ledger
from lt_train.importers.upstream.megatron_options import OF_REINFORCEMENT, SWITCHES

NOT_DELAYED = "the scale of fp8 is computed anew for each GEMM, not from earlier steps: tensorwise, which rounds differently"

# gpt_dataset.py makes the mask that resets at documents only if the data loader makes masks.
WITHOUT_MASK = "no mask of the data loader has it, so attention crosses documents, as without it"
# TEDotProductAttention and the fused softmax take the mask for causal, whatever it says: NVIDIA/Megatron-LM issue 2357.
UNREAD_MASK = (
    "lt-train lets no token attend to an earlier document; Megatron-LM does so beside --transformer-impl local and"
    " --no-masked-softmax-fusion, and with Transformer Engine, its default, reads no mask"
)
# Sources whose attention reads the documents.
OF_OTHER_ATTENTION = ("nanotron",)
SUMS_OF_FSDP = "lt-train sums gradients in float32, Megatron-FSDP since 0.19 in the type of the weights"
SUMS_IN_FLOAT32 = "gradients are summed in float32"
FSDP_TYPES = ("megatron_fsdp_main_grads_dtype", "megatron_fsdp_grad_comm_dtype")
OF_FLOAT32 = ("fp32", "torch.float32")


def translate(ledger: Ledger) -> None:
    _fp8(ledger)
    _fused_gelu(ledger)
    _mask(ledger)
    sharded(ledger, ("use_megatron_fsdp",), "", ledger.has("bf16") or ledger.has("fp16"))
    _positions(ledger)
    _switched_off(ledger)
    routing.translate(ledger)


def _fp8(ledger: Ledger) -> None:
    """Without --fp8-format nothing reads how fp8 is computed; with it, Megatron-LM scales by earlier steps unless told not to."""
    if not ledger.has("fp8_format"):
        for key in [key for key in ledger.remaining_keys() if key.startswith(("fp8_", "no_fp8_", "disable_fp8_"))]:
            ledger.drop(key, "fp8 is off")
    elif ledger.peek("fp8_recipe") == [DELAYED] or "fp8_recipe" not in ledger.original_values():
        delayed_scaling(ledger, "fp8_recipe")


def delayed_scaling(ledger: Ledger, key: str) -> None:
    """Carry the recipe `delayed`, which `key` says or is by silence, over as the nearest one."""
    ledger.take(key)
    ledger.set("fp8_recipe", "tensorwise", key)
    ledger.drop_value(key, DELAYED, NOT_DELAYED, Effect.RESULT)


def _fused_gelu(ledger: Ledger) -> None:
    if ledger.has("swiglu"):
        ledger.drop("no_bias_gelu_fusion", "the model has SwiGLU")
    elif ledger.has("no_bias_gelu_fusion"):
        ledger.take("no_bias_gelu_fusion")
        ledger.drop_value("no_bias_gelu_fusion", True, FUSED_GELU, Effect.RESULT)


def _mask(ledger: Ledger) -> None:
    """Drop --reset-attention-mask if the data loader makes no mask: then Megatron-LM's attention crosses documents."""
    if ledger.has("no_create_attention_mask_in_dataloader"):
        ledger.drop("reset_attention_mask", WITHOUT_MASK)
    is_fused = (ledger.has("bf16") or ledger.has("fp16")) and not ledger.has("no_masked_softmax_fusion")
    is_unread = ledger.peek("transformer_impl") != ["local"] or is_fused or ledger.has("use_flash_attn")
    if ledger.has("reset_attention_mask") and is_unread and ledger.source not in OF_OTHER_ATTENTION:
        ledger.drop_value("reset_attention_mask", True, UNREAD_MASK, Effect.RESULT)


def sharded(ledger: Ledger, switches: Sequence[str], section: str, is_16_bit: bool) -> None:
    """Tell that Megatron-FSDP, which one of `switches` turns on, sums gradients in 16 bits unless its types say float32."""
    types = [_word(ledger.peek(section + name)) for name in FSDP_TYPES]
    for name, kind in zip(FSDP_TYPES, types, strict=True):
        if kind in OF_FLOAT32:
            ledger.drop(section + name, SUMS_IN_FLOAT32)
    for key in switches:
        if ledger.has(key) and ledger.peek(key) is not False and is_16_bit and types[0] not in OF_FLOAT32:
            ledger.drop(key, SUMS_OF_FSDP, Effect.RESULT)


def _word(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _positions(ledger: Ledger) -> None:
    if ledger.peek("position_embedding_type") != ["rope"]:
        ledger.drop("no_position_embedding", "lt-train has rope or learned positions", Effect.MODEL)


def _switched_off(ledger: Ledger) -> None:
    """Options that nothing reads without another one."""
    if not ledger.has("perform_rl_step"):
        for key in [key for key in ledger.remaining_keys() if key.startswith(OF_REINFORCEMENT)]:
            ledger.drop(key, "without --perform-rl-step nothing reads it")
    for key, (switch, value) in SWITCHES.items():
        is_off = ledger.peek(switch) != [value] if value else not ledger.has(switch)
        if is_off:
            name = f"--{switch.replace('_', '-')}"
            ledger.drop(key, f"without {name}{f' {value}' if value else ''} nothing reads it")
