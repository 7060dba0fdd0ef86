"""The command line of lt-train: parses, resolves the plan, and runs it."""

from typing import Any

import click

from lt_shared import console
from lt_train import __version__, device

EXAMPLES = """
lt-preprocess corpus.jsonl --tokenizer gpt2/ --append-eod -o data/web | lt-train --model tiny --train-iters 20 --save run1 -
lt-train --model tiny --train-iters 20 --ranks 2 --save run2 0.7 data/web_text_document 0.3 data/code_text_document
lt-train --model llama3.1-8b --tensor-model-parallel-size 2 --ranks 8 --dry-run data/web_text_document
torchrun --nproc-per-node 2 -m lt_train --model tiny --train-iters 20 --save run3 data/web_text_document
"""


def positive(default: Any = None, **kwargs: Any) -> dict[str, Any]:
    return {"type": click.IntRange(min=1), "default": default, **kwargs}


@click.command(cls=console.Command, examples=EXAMPLES)
@click.version_option(__version__, "--version", prog_name="lt-train", message="%(prog)s %(version)s")
@click.argument("data", nargs=-1, required=True)
@click.option("--model", help="A named architecture; single sizes can be changed with the options below.")
@click.option("--num-layers", **positive(), help="Transformer layers.")
@click.option("--hidden-size", **positive(), help="Width of the residual stream.")
@click.option("--ffn-hidden-size", **positive(), help="Width of the feed-forward layer.")
@click.option("--num-attention-heads", **positive(), help="Query heads.")
@click.option("--num-query-groups", **positive(), help="Key and value heads (grouped-query attention).")
@click.option("--kv-channels", **positive(), help="Size of one head.")
@click.option("--max-position-embeddings", **positive(), help="Positions that the model is made for.")
@click.option("--vocab-size", **positive(), help="Vocabulary before padding; by default the data's.")
@click.option("--position-embedding-type", type=click.Choice(["rope", "learned_absolute"]), help="How positions are encoded.")
@click.option("--normalization", type=click.Choice(["RMSNorm", "LayerNorm"]), help="Kind of norm.")
@click.option("--norm-epsilon", type=click.FloatRange(min=0, min_open=True), help="Epsilon of the norms.")
@click.option("--rotary-base", type=click.IntRange(min=1), help="Base of the rotary embeddings.")
@click.option("--swiglu", is_flag=True, default=None, help="Gated feed-forward layers with SiLU.")
@click.option("--disable-bias-linear", is_flag=True, default=None, help="No biases in linear layers.")
@click.option("--untie-embeddings-and-output-weights", is_flag=True, default=None, help="Separate output matrix.")
@click.option("--init-method-std", type=click.FloatRange(min=0), help="Standard deviation of the initial weights.")
@click.option("--seq-length", **positive(), help="Tokens per sample; by default the positions of the model, at most 8192.")
@click.option("--micro-batch-size", **positive(1), help="Samples per forward pass and rank.")
@click.option("--global-batch-size", **positive(), help="Samples per step; by default one micro batch per data-parallel rank.")
@click.option("--train-iters", **positive(1000), help="Steps to train in all.")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), default=3e-4, help="Peak learning rate.")
@click.option("--min-lr", type=click.FloatRange(min=0), help="Final learning rate; by default a tenth of the peak.")
@click.option("--lr-warmup-iters", type=click.IntRange(min=0), help="Steps of linear warm-up; by default 1% of the run.")
@click.option("--lr-decay-iters", **positive(), help="Steps until the final learning rate; by default the whole run.")
@click.option("--weight-decay", type=click.FloatRange(min=0), default=0.1, help="Weight decay; norms and biases have none.")
@click.option("--adam-beta1", type=click.FloatRange(0, 1, max_open=True), default=0.9, help="Decay of the first moment.")
@click.option("--adam-beta2", type=click.FloatRange(0, 1, max_open=True), default=0.95, help="Decay of the second moment.")
@click.option("--adam-eps", type=click.FloatRange(min=0, min_open=True), default=1e-8, help="Epsilon of AdamW.")
@click.option("--clip-grad", type=click.FloatRange(min=0), default=1.0, help="Largest gradient norm; 0 does not clip.")
@click.option("--bf16", is_flag=True, help="Train in bfloat16 with fp32 master weights.")
@click.option("--seed", type=click.IntRange(min=0), default=1234, help="Seed of the weights and of the order of the data.")
@click.option("--tensor-model-parallel-size", **positive(1), help="Ranks that share each layer.")
@click.option("--pipeline-model-parallel-size", **positive(1), help="Ranks that share the layers among them.")
@click.option("--sequence-parallel", is_flag=True, help="Split norms along the sequence among tensor-parallel ranks.")
@click.option("--use-distributed-optimizer", is_flag=True, help="Split the optimizer state among data-parallel ranks.")
@click.option("--ranks", **positive(), help="Ranks to start here; by default one per GPU, or what the model parallel sizes need.")
@click.option(
    "--device", type=click.Choice(device.DEVICES), default="auto", help="Where to train; auto takes the GPUs if there are any."
)
@click.option("--split", default="99,1,0", help="Shares of training, validation and test documents.")
@click.option("--eval-interval", **positive(1000), help="Steps between evaluations; the last step always has one.")
@click.option("--eval-iters", type=click.IntRange(min=0), default=10, help="Global batches per evaluation; 0 for none.")
@click.option("--save", type=click.Path(file_okay=False), help="Directory of the run: checkpoints, log, metrics.")
@click.option("--load", type=click.Path(file_okay=False), help="Start from this run or checkpoint when SAVE has none.")
@click.option("--save-interval", **positive(1000), help="Steps between checkpoints; the last step always has one.")
@click.option("--log-interval", **positive(10), help="Steps between log lines.")
@click.option("--data-cache-path", type=click.Path(file_okay=False), help="Where sample indices are kept; by default in SAVE.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    is_eager=True,
    callback=lambda *a: read_config(*a),
    expose_value=False,
    help="TOML file with any of these options, for example `seq-length = 4096`.",
)
@click.option("--plain", is_flag=True, help="Print bare checkpoint paths instead of JSON lines.")
@click.option("--dry-run", is_flag=True, help="Print the resolved plan as JSON and stop.")
def command(data: tuple[str, ...], dry_run: bool, **options: Any) -> None:
    """Pretrain a decoder language model on DATA with megatron-core.

    DATA is `-` (a manifest on standard input), `@FILE` (a manifest in a file), or dataset prefixes, each optionally preceded by
    its weight. Runs on its own ranks, or as a rank of torchrun or srun. Log lines go to standard error, one JSON line per
    checkpoint to standard output. The same command continues an interrupted run.
    """
    from lt_shared import manifest
    from lt_train import launch, settings

    datasets = manifest.datasets(manifest.read(data), " ".join(data))
    plan = settings.resolve(options, tuple(datasets))
    if dry_run:
        console.print_json(settings.as_record(launch.prepare(plan)))
        return
    launch.launch(plan)


def read_config(context: click.Context, parameter: click.Parameter, path: str | None) -> None:
    """Make the file's values the defaults; options and environment variables come before them."""
    if path is None:
        return
    from lt_train import settings

    context.default_map = settings.from_toml(path, {option.name for option in context.command.params if option.name})


def main() -> None:
    console.run(command, "lt-train")
