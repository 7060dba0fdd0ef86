"""The Megatron arguments in a checkpoint, read as an architecture and written for one."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from lt_convert.containers.pickle_writer import Global, Instance
from lt_convert.weights.mapping import Model
from lt_shared.console import BadConfig, BadData, warn
from lt_shared.models import hybrid_pattern, megatron_arguments
from lt_shared.models.architecture import Architecture


def architecture(arguments: Mapping[str, Any], origin: str, name: str, all_describe_model: bool = False) -> Architecture:
    """The architecture that stored arguments describe, with a warning for arguments that are not known (`remarks`).

    Raises BadData, naming `origin`, for an unsupported one.
    """
    fields = dict(arguments)
    if fields.get("vocab_size") is None and fields.get("padded_vocab_size"):
        warn(f"{origin}: the vocabulary size is not stored; all {fields['padded_vocab_size']} rows are kept, padding included")
        fields["vocab_size"] = fields["padded_vocab_size"]
    elif _has_token_behind_vocabulary(fields):
        fields["vocab_size"] += 1
    try:
        result = dataclasses.replace(megatron_arguments.from_arguments(fields, origin), name=name)
        for remark in megatron_arguments.remarks(fields, all_describe_model):
            warn(f"{origin}: {remark}")
        return result
    except BadConfig as error:
        raise BadData(str(error), error.hint) from None
    except TypeError as error:
        raise BadData(f"{origin}: malformed Megatron arguments: {error}") from None


def _has_token_behind_vocabulary(fields: Mapping[str, Any]) -> bool:
    """Return whether Megatron-LM's NullTokenizer added an end of document to `vocab_size`, as it did up to 0.17.

    Since 0.18 the namespace has the id of that token, and `vocab_size` counts it.
    """
    size, padded_size = fields.get("vocab_size"), fields.get("padded_vocab_size")
    is_null = fields.get("tokenizer_type") == "NullTokenizer" and "null_tokenizer_eod_id" not in fields
    return is_null and isinstance(size, int) and (not isinstance(padded_size, int) or padded_size > size)


def check_computable(architecture: Architecture, origin: str) -> None:
    """Raises BadData for a model that Megatron-LM would compute differently, and no other reader of the format rightly."""
    for absent in megatron_arguments.absent_in_megatron(architecture):
        raise BadData(f"{origin}: Megatron-LM lacks {absent}", "--to megatron-dist, which lt-train computes rightly")


def warn_of_absent(architecture: Architecture, origin: str, hybrid: bool = False) -> None:
    """Warn of features that Megatron-LM lacks, which lt-train computes rightly.

    If the format is `hybrid`, also warn of features that GPTModel has and HybridModel lacks.
    """
    for absent in megatron_arguments.absent_in_megatron(architecture):
        warn(f"{origin}: Megatron-LM lacks {absent}; lt-train computes the model rightly")
    for absent in megatron_arguments.absent_in_hybrid_model(architecture) if hybrid else ():
        warn(f"{origin}: Megatron-LM's HybridModel lacks {absent}; its GPTModel and lt-train compute the model rightly")


def common_state(model: Model, dtype: str, hybrid: bool = False, **sizes: Any) -> dict[str, Any]:
    """What Megatron stores beside the tensors of a checkpoint without training state. `sizes` replace or add arguments.

    Raises BadData for a model that HybridModel cannot have if the checkpoint is `hybrid`.
    """
    architecture_arguments = megatron_arguments.to_arguments(model.architecture)
    if hybrid:
        try:
            architecture_arguments = hybrid_pattern.from_decoder(architecture_arguments, model.architecture)
        except BadConfig as error:
            raise BadData(str(error), error.hint) from None
    arguments = architecture_arguments | {
        "padded_vocab_size": model.padded_vocab_size,
        "make_vocab_size_divisible_by": 128,
        "add_position_embedding": True,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "data_parallel_size": 1,
        "world_size": 1,
        "ckpt_format": "torch_dist",
        "no_save_optim": True,
        "no_save_rng": True,
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
        "params_dtype": Global("torch", dtype),
        "bf16": dtype == "bfloat16",
        "fp16": dtype == "float16",
        **sizes,
    }
    return {
        "args": Instance(Global("argparse", "Namespace"), arguments),
        "checkpoint_version": 3.0,
        "iteration": 0,
        "num_floating_point_operations_so_far": 0,
    }
