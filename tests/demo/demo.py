"""The whole pipeline on real text, in a few minutes on two cores: `nox -s demo`.

Tokenizes the corpus beside this file, pretrains a Llama of a million parameters on two ranks, converts the checkpoint to Hugging
Face format, continues a prompt with transformers, and draws the loss curve. Everything it makes lies in demo-output/. Running it
again finds every step up to date.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from lt_shared.data import indexed_dataset

REPOSITORY = Path(__file__).resolve().parents[2]
OUTPUT = Path("demo-output")
PROMPT = "A hacker is"
TRAINING = (
    "--model tiny --ranks 2 --seq-length 256 --micro-batch-size 8 --global-batch-size 16 --train-iters 300"
    " --lr 4e-3 --lr-warmup-iters 20 --log-interval 20 --eval-interval 100 --eval-iters 2 --save-interval 100"
)
PIPELINE = f"""\
lt-preprocess tests/demo/corpus.jsonl.zst --tokenizer tests/demo/tokenizer --append-eod -o {OUTPUT}/data \\
  | tee {OUTPUT}/data.manifest \\
  | lt-train {TRAINING} --save {OUTPUT}/run - \\
  | lt-convert --to hf -o {OUTPUT}/model -"""


def main() -> None:
    os.chdir(REPOSITORY)
    OUTPUT.mkdir(exist_ok=True)
    # The commands of this environment come first, whatever else is installed.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    started = time.monotonic()
    say("1. Tokenize, pretrain on two ranks, convert: one pipeline")
    shell(PIPELINE)
    entropy, loss = unigram_entropy(OUTPUT / "data_text_document"), final_loss(OUTPUT / "run/metrics.jsonl")
    say("2. Continue a prompt with transformers")
    print(continuation(OUTPUT / "model", PROMPT))
    say("3. Draw the loss curve")
    plot = f"lt-monitor plot {OUTPUT}/run/train.log --reference unigram={entropy:.3f} --plain -o {OUTPUT}/loss.png"
    shell(plot)
    say("Result")
    print(f"unigram entropy of the corpus  {entropy:.3f} nats per token (what a model without context can reach)")
    print(f"validation loss of the model   {loss:.3f} nats per token")
    if loss > entropy - 0.5:
        sys.exit("the model did not learn: its loss is not clearly below the unigram entropy")
    farewell(time.monotonic() - started)


def say(title: str) -> None:
    print(f"\n== {title}", flush=True)


def shell(command: str) -> None:
    """Show a command and run it; its failure ends the demo with its exit code."""
    print(f"$ {command}", flush=True)
    done = subprocess.run(["bash", "-c", f"set -o pipefail\n{command}"], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def unigram_entropy(prefix: Path) -> float:
    """Nats per token of the distribution of single tokens."""
    counts = np.bincount(indexed_dataset.Reader(str(prefix)).tokens)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def final_loss(metrics: Path) -> float:
    evaluations = [record for line in metrics.read_text().splitlines() if (record := json.loads(line))["kind"] == "eval"]
    return float(evaluations[-1]["loss"])


def continuation(model_directory: Path, prompt: str) -> str:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    model = AutoModelForCausalLM.from_pretrained(model_directory)
    torch.manual_seed(0)
    inputs = tokenizer(prompt, return_tensors="pt")
    tokens = model.generate(
        **inputs, max_new_tokens=60, do_sample=True, temperature=0.8, top_k=50, pad_token_id=model.config.eos_token_id
    )
    return str(tokenizer.decode(tokens[0], skip_special_tokens=True))


def farewell(seconds: float) -> None:
    print(f"\nDone in {seconds:.0f} s. Made:")
    for path, what in (
        ("data_text_document.bin", "the tokens, with .idx: Megatron's dataset format"),
        ("run/", "checkpoints, train.log, metrics.jsonl"),
        ("model/", "the Hugging Face model"),
        ("loss.png", "the loss curve"),
    ):
        print(f"  {OUTPUT / path!s:38} {what}")
    longer = TRAINING.replace("--train-iters 300", "--train-iters 600")
    activate = Path(sys.prefix)
    if activate.is_relative_to(REPOSITORY):
        activate = activate.relative_to(REPOSITORY)
    print(f"\nTry next, after `source {shlex.quote(str(activate))}/bin/activate`:")
    print(f"  lt-monitor summarize {OUTPUT}/run/train.log")
    print(f"  lt-train {longer} --save {OUTPUT}/run @{OUTPUT}/data.manifest")
    print(f"  lt-convert {OUTPUT}/model --to megatron-dist -o {OUTPUT}/megatron")


if __name__ == "__main__":
    main()
