"""The command line of lt-train: parse the options, resolve the configuration of the run, and run it.

Training has no command name: `lt-train DATA...` trains, `lt-train bench` measures. A dataset with the name of a command is
written as `./bench`. The other commands are modules in `lt_train.commands`.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lt_shared import console
from lt_shared.console import BadConfig, ExitCode
from lt_train.config import cluster, optional_packages
from lt_train.config.options import MEASURED_SUBJECTS, RunCommand, run_options, settings_options, with_training_defaults
from lt_train.config.run_config import RunConfig
from lt_train.config.settings import benchmark, streaming
from lt_train.config.settings import data as data_settings
from lt_train.process import device, open_files, signals

if TYPE_CHECKING:
    pass

EXAMPLES = """
lt-preprocess corpus.jsonl --tokenizer gpt2/ --append-eod -o data/web | lt-train --model tiny --train-iters 20 --save run1 -
lt-train --model tiny --train-iters 20 --ranks 2 --save run2 0.7 data/web_text_document 0.3 data/code_text_document
lt-train plan --model llama3.1-8b --bf16 --gpu h100-80gb --seq-length 8192
torchrun --nproc-per-node 2 -m lt_train --model tiny --train-iters 20 --save run3 data/web_text_document
"""


BENCH_EXAMPLES = """
lt-train bench --model llama3-8b --layers 8 --seq-length 8192 --micro-batch-size 4 --bf16
lt-train bench --model tiny --device cpu --steps 3 --warmup-steps 1 --json
"""
# Commands and their modules in lt_train.commands, imported when a command is called or listed.
MODULES = {
    "help": "help_sections",
    "import": "importing",
    "models": "models",
    "plan": "plan_layout",
    "preflight": "preflight",
    "render": "render",
    "replay": "replay",
    "score": "score",
}
# The options that -h shows.
COMMON = (
    *("config", "dry_run", "model", "num_layers", "seq_length", "micro_batch_size", "global_batch_size"),
    *("train_iters", "train_tokens", "seed", "bf16", "fp8_recipe", "lr", "min_lr", "lr_decay_style", "lr_warmup_iters"),
    *("parallel", "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "ranks", "device"),
    *("recompute_granularity", "mock_data", "split", "eval_interval", "save", "load", "save_interval", "keep_last"),
    *("log_interval", "tensorboard_dir", "wandb_project"),
)


class Command(RunCommand, console.DefaultCommand):
    """The command that trains. Its first word is a dataset or the name of another command."""

    def is_operand(self, word: str) -> bool:
        # A prefix names a dataset if its .idx exists. No file has the name of the prefix alone.
        return super().is_operand(word) or os.path.lexists(f"{word}.idx")

    def format_short_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_short_help(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text("lt-train --help shows all options, lt-train help SECTION some: see lt-train help.")


def _named() -> click.Group:
    return commands


@click.command(cls=Command, examples=EXAMPLES, common=COMMON, named=_named)
@console.version_option("lt-train", *optional_packages.DISTRIBUTIONS)
@run_options
def command(data: tuple[str, ...], dry_run: bool, as_json: bool, **options: Any) -> int:
    """Pretrain a decoder language model on DATA with megatron-core.

    DATA is `-` (a manifest on standard input), `@FILE` (a manifest in a file), or dataset prefixes, each optionally preceded by
    its weight; text files with --tokenizer are tokenized on the way; --mock-data stands in for it. Runs on its own ranks, or as a
    rank of torchrun or srun. Log lines go to standard error, one JSON line per checkpoint to standard output. The same command
    continues an interrupted run.
    """
    device.begin_driver()
    from lt_train.checkpoint import resume
    from lt_train.launch import launcher, tokenization
    from lt_train.planner.resolve import resolve_run_config

    datasets = data_settings.training_datasets(tokenization.tokenize_text(data, options, dry_run), options)
    options = streaming.length_options(options, datasets)

    def resolve(nodes: int | None = None, ranks: int | None = None) -> RunConfig:
        return resolve_run_config(options, datasets, nodes, ranks).started_by(sys.argv[1:])

    config = resolve()
    if not dry_run:
        return launcher.launch(config, resolve)
    config = launcher.prepare(config)
    is_finished = resume.is_finished(config.checkpointing, config.batches.train_iters)
    return _show_plan(config, as_json, is_finished)


def _show_plan(config: RunConfig, as_json: bool, is_finished: bool | None) -> int:
    """Print the plan of a run, as a table on a terminal, else as JSON. Raise BadConfig afterwards if a rank's memory is too
    small.

    `is_finished` is None for a run without checkpoints.
    """
    from lt_train.planner import memory_estimate, run_table, search
    from lt_train.planner.memory_advice import MemoryAdvice

    estimate = memory_estimate.estimate(config).fullest_rank
    local_cluster = cluster.local_cluster(config.parallelism.device, config.parallelism.world_size)
    if as_json or not sys.stdout.isatty():
        progress = {} if is_finished is None else {"up_to_date": is_finished}
        console.print_json(config.as_record() | {"rank_memory_bytes": estimate.as_record()} | progress)
    else:
        console.print_text(run_table.table(config, local_cluster, bool(is_finished)))
    if shortage := search.memory_shortage(estimate, local_cluster):
        elsewhere = "lt-train plan --gpu NAME --nodes N shows it on another machine"
        advice = MemoryAdvice(config).text(shortage.is_certain)
        raise BadConfig(f"the plan does not fit: {shortage.reason}", f"{advice}; {elsewhere}")
    return ExitCode.OK


class Commands(console.Group):
    """Import a command's module when it is needed, because most modules build the options of a run, which takes time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in MODULES:
            return super().get_command(ctx, cmd_name)
        lazy_command: click.Command = importlib.import_module(f"lt_train.commands.{MODULES[cmd_name]}").command
        return lazy_command


@click.group(cls=Commands)
def commands() -> None:
    """Pretrain language models."""


@commands.command(cls=console.Command, examples=BENCH_EXAMPLES)
@click.option("--dry-run", is_flag=True, help="Print the resolved plan as JSON and stop.")
@settings_options(benchmark, *MEASURED_SUBJECTS, without=benchmark.SETTLED)
def bench(dry_run: bool, **options: Any) -> int:
    """Measure how fast a model trains here: no data, no saving.

    Trains on made-up tokens for some steps and shows their median time, throughput, MFU and memory, how long a step waits for
    data, and what the training loop's own Python takes.
    """
    from lt_train.launch import launcher
    from lt_train.planner.resolve import resolve_run_config

    config = resolve_run_config(with_training_defaults(options) | benchmark.training_options(options), ())
    return _show_plan(config, as_json=True, is_finished=None) if dry_run else launcher.launch(config)


def main() -> NoReturn:
    open_files.raise_limit()
    console.run(command, "lt-train", signals.end_before_training)
