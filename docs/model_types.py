"""Write docs/guides/model-types.md: every model type in transformers that has a causal language model, and its status here.

    python docs/model_types.py --trained

The default configuration of each type is read as `lt-train --model config.json` reads it. For a type with a tiny preset, a random
model of transformers is converted to megatron-dist and back, and with --trained, lt-train computes its loss.
"""

import argparse
import contextlib
import dataclasses
import datetime
import io
import json
import logging
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
import transformers
from safetensors.torch import load_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lt_convert.commands.conversion import Request, convert
from lt_shared.console import BadConfig, ToolError
from lt_shared.data import indexed_dataset
from lt_shared.models import huggingface
from lt_shared.models.presets import PRESETS

PAGE = Path(__file__).parent / "guides" / "model-types.md"
LENGTH = 64
TOKENS = numpy.arange(LENGTH) * 7 % 2000
STEP = (
    f"--device cpu --seq-length {LENGTH} --train-iters 1 --eval-iters 0 --split 1,0,0 --lr 1e-30 --min-lr 0 --weight-decay 0 "
    "--moe-router-bias-update-rate 0"
)
CLOSE = 1e-5
EXACT, COMPUTED, READ, REFUSED, WRONG, CRASHED = "bits", "bits and loss", "read", "refused", "WRONG", "CRASHED"
NO_REFERENCE = "no reference"


class Result(NamedTuple):
    status: str
    remark: str = ""


def check(kind: str, trained: bool) -> Result:
    try:
        config = CONFIG_MAPPING[kind]().to_dict()
    except Exception as error:  # transformers has defaults that contradict each other
        return Result(NO_REFERENCE, f"transformers refuses its own default configuration: {error}")
    try:
        huggingface.from_config(config, "default")
    except BadConfig as error:
        refusal = Result(REFUSED, f"{error}; {error.hint}".removeprefix("default: "))
    except Exception as error:  # the page reports it
        return Result(CRASHED, f"reading: {type(error).__name__}: {error}")
    else:
        refusal = None
    preset = next((name for name in PRESETS if name.startswith("tiny") and _type(name) == kind), None)
    if preset is None:
        return refusal or Result(READ, "no tiny preset")
    with tempfile.TemporaryDirectory() as directory:
        try:
            result = _compare(preset, Path(directory), trained)
        except Exception as error:  # the page reports it
            return Result(CRASHED, f"{preset}: {type(error).__name__}: {error!s:.300}")
    return result._replace(remark=f"default configuration refused: {refusal.remark}") if refusal and not result.remark else result


def _type(preset: str) -> str | None:
    return huggingface.model_type(PRESETS[preset])


def _compare(preset: str, directory: Path, trained: bool) -> Result:
    """Convert a random model both ways; compare its bits, and if `trained`, the loss."""
    torch.manual_seed(1)
    architecture = PRESETS[preset]
    if architecture.gated_delta:
        # transformers saves the three parts of a convolution as if they were equally wide (findings).
        delta = architecture.gated_delta
        equal = {"linear_num_value_heads": delta.linear_num_key_heads, "linear_value_head_dim": delta.linear_key_head_dim}
        architecture = dataclasses.replace(architecture, gated_delta=dataclasses.replace(delta, **equal))
    config = huggingface.to_config(architecture, "float32") | {"num_nextn_predict_layers": 0}
    model: Any = _model(CONFIG_MAPPING[config["model_type"]](**config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory / "hf")
    convert(Request(str(directory / "hf"), "megatron-dist", str(directory / "megatron")))
    convert(Request(str(directory / "megatron"), "hf", str(directory / "back")))
    original, back = (load_file(directory / name / "model.safetensors") for name in ("hf", "back"))
    renamed = [back.pop(name) for name in sorted(back.keys() - original.keys())]
    missing = sorted(original.keys() - back.keys())
    back |= dict(zip(missing, renamed, strict=False))
    if original.keys() != back.keys() or not all(torch.equal(back[name], tensor) for name, tensor in original.items()):
        return Result(WRONG, "the weights differ after a conversion both ways")
    remark = f"with other names for {len(missing)} tensors, such as {missing[0]}" if missing else ""
    if not trained:
        return Result(EXACT, remark)
    with indexed_dataset.Writer(str(directory / "data"), numpy.dtype("uint16")) as writer:
        for _ in range(20):
            writer.append_document(TOKENS)
        writer.publish()
    command = (sys.executable, "-m", "lt_train", "--model", "hf", "--load", "megatron", *STEP.split(), "--save", "run", "data")
    process = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if process.returncode:
        return Result(CRASHED if "Traceback" in process.stderr else REFUSED, f"lt-train: {process.stderr[-300:]}")
    records = [json.loads(line) for line in (directory / "run/metrics.jsonl").read_text().splitlines()]
    loss = next(record["loss"] for record in records if record["kind"] == "step")
    tokens = torch.from_numpy(numpy.append(TOKENS, TOKENS[0]))
    with torch.no_grad():
        right = float(torch.nn.functional.cross_entropy(model.eval()(tokens[None, :-1]).logits[0].float(), tokens[1:]))
    if abs(loss - right) > CLOSE * right:
        return Result(WRONG, f"loss {loss}, transformers has {right}")
    return Result(COMPUTED, remark)


def _model(config: Any) -> Any:
    return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type])(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trained", action="store_true", help="Compute a loss with lt-train, too.")
    parser.add_argument("--only", nargs="*", help="Check these types only, and print them.")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    results: dict[str, Result] = {}
    for kind in arguments.only or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        with contextlib.redirect_stderr(io.StringIO()):
            results[kind] = check(kind, arguments.trained)
        print(kind, *results[kind], flush=True)
    if not arguments.only:
        PAGE.write_text(_page(results))


def _page(results: dict[str, Result]) -> str:
    counts = Counter(result.status for result in results.values())
    rows = [f"| `{kind}` | {result.status} | {_cell(result.remark)} |" for kind, result in results.items()]
    total = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return (
        f"""# Model types in transformers

The {len(results)} model types with a causal language model in transformers {transformers.__version__}, as `docs/model_types.py`
found them on {datetime.datetime.now(datetime.UTC).date()}: {total}.

"bits and loss": the weights of a random tiny model are the same after a conversion to megatron-dist and back, and lt-train has
transformers' loss. "bits": the weights alone. "read": `lt-train --model config.json` and lt-convert read its configuration.
"refused": both refuse it with this message, before anything runs. [Models](models.md) describes the supported types.

| model type | status | remark |
|---|---|---|
"""
        + "\n".join(rows)
        + "\n"
    )


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())[:300]


if __name__ == "__main__":
    with contextlib.suppress(ToolError):
        main()
