"""Collect and check the contents of a job file: the stages, the machines, and lt-train's command line.

The job file has the arguments of lt-train, quoted, followed by the options from `--config` and from environment variables
(LT_TRAIN_SEQ_LENGTH), because the nodes may have neither. All options are parsed here, so that a misspelt option or a layout that
does not divide is an error now and not after hours in a queue.
"""

import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from lt_shared.console import UsageError, note, warn
from lt_shared.credentials import QUERY, REFUSED
from lt_shared.files import storage
from lt_train.config import credentials
from lt_train.config.instances import Instance
from lt_train.config.options import schema
from lt_train.config.settings import validation_sets
from lt_train.planner import node_counts
from lt_train.render import stage_check

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# A shell expands ~ only in an unquoted word, and a job file quotes every word.
HOME = re.compile(r"(--[a-z0-9-]+=|@)?~")
# Environment variables that the widely used scripts around Megatron-LM read, and the options that they stand for here.
SIZES = {
    "NUM_LAYERS": "--num-layers",
    "HIDDEN_SIZE": "--hidden-size",
    "NUM_ATTENTION_HEADS": "--num-attention-heads",
    "MAX_POSITION_EMBEDDINGS": "--max-position-embeddings",
}
BATCHES = {
    "SEQ_LENGTH": "--seq-length",
    "MICRO_BATCH_SIZE": "--micro-batch-size",
    "GLOBAL_BATCH_SIZE": "--global-batch-size",
    "TENSOR_PARALLEL": "--tensor-model-parallel-size",
    "PIPELINE_PARALLEL": "--pipeline-model-parallel-size",
}
# If either variable is set, the job uses --parallel manual, because the user chose the layout.
LAYOUT = ("TENSOR_PARALLEL", "PIPELINE_PARALLEL")
OWN_LAYOUT = ("--parallel", "manual")


@dataclasses.dataclass(frozen=True)
class Job:
    """A checked job. `train` holds the arguments of lt-train, without DATA if `preprocess` makes it.

    `options` are the parsed arguments, `data_paths` the manifests and datasets among them. `preprocess` and `convert` are the
    arguments of lt-preprocess and lt-convert, None without the stage. `save` is the run's directory or URL. `accelerators` is the
    number of ranks per node, None if lt-train determines it when it starts. `manifests` is the directory for manifests if SAVE is
    a URL, None for the working directory. `node_counts` are the numbers of nodes that an elastic job may run on, up to `nodes`;
    empty if the number is fixed. `is_array`: Slurm starts the job several times, as the tasks of an array. `spare_nodes` of
    `nodes` wait for the loss of another node.
    """

    name: str
    nodes: int
    instance: Instance | None
    accelerators: int | None
    image: str | None
    train: tuple[str, ...]
    options: dict[str, Any]
    data_paths: tuple[str, ...]
    preprocess: tuple[str, ...] | None
    convert: tuple[str, ...] | None
    manifests: str | None = None
    node_counts: tuple[int, ...] = ()
    is_array: bool = False
    spare_nodes: int = 0

    @property
    def save(self) -> str:
        return str(self.options["save"]).rstrip("/")

    @property
    def environment(self) -> dict[str, str]:
        return self.instance.environment() if self.instance else {}

    def beside(self, name: str) -> str:
        """Return the path of a file of the job: in SAVE, or in `manifests` if SAVE is a URL."""
        if not storage.is_remote(self.save):
            return f"{self.save}/{name}"
        return f"{self.manifests}/lt-{self.name}-{name}" if self.manifests else f"lt-{self.name}-{name}"


def make(
    words: Sequence[str],
    *,
    program: str,
    name: str,
    nodes: int,
    instance: Instance | None,
    accelerators: int | None,
    image: str | None,
    preprocess: str | None,
    convert: str | None,
    sizes: Mapping[str, str],
    least_nodes: int | None = None,
    keeps_nodes: bool = False,
) -> Job:
    """Build and check a job. Raises UsageError for unknown arguments, BadConfig for a run that cannot work on the nodes.

    `program` is the command in messages. `least_nodes` is set for an elastic job only. `sizes` may have values for
    the names in `SIZES` and `BATCHES`. `keeps_nodes`: the scheduler lets the job go on when a node is lost.
    """
    if not NAME.fullmatch(name):
        raise UsageError(f"--job-name {name!r}", "take letters, digits, -, _ and .")
    if image is not None:
        _check_secrets(image, "--image")
    if image is not None and not re.fullmatch(r"\S+", image):
        raise UsageError(f"--image {image!r}: no container image is called so", "--image REGISTRY/NAME:TAG, or FILE.sqsh")
    words = [*words, *_sizes(sizes)]
    context = schema().make_context(program, words, auto_envvar_prefix="LT_TRAIN")
    options = context.params
    words = [*_without_config(words), *_options_from_files_and_environment(context)]
    for word in words:
        check_value(word, "lt-train's arguments")
    if options["model"] and any(sizes.get(variable) for variable in SIZES):
        raise UsageError(changes_preset(options["model"]), f"unset {', '.join(name for name in SIZES if sizes.get(name))}")
    data_paths = [*options.pop("data"), *options["data_path"], *options["train_data_path"]]
    _check_data(data_paths, options, preprocess is not None)
    if not options["save"]:
        raise UsageError(
            "no --save: a job that saves nothing starts anew each time", "add --save DIRECTORY on a shared filesystem"
        )
    if convert is not None and "-o" not in shlex.split(convert) and "--output" not in shlex.split(convert):
        raise UsageError("--convert without -o: lt-convert must know where to write", "--convert '--to hf -o DIRECTORY'")
    _check_launch(options, nodes, keeps_nodes)
    spare_nodes: int = options["spare_nodes"]
    accelerators = accelerators or (instance.accelerators if instance else None)
    ranks = accelerators or options["ranks"]
    check = partial(_check_config, options, instance.gpu if instance else None, ranks) if ranks else None
    counts: tuple[int, ...] = ()
    if least_nodes is not None and least_nodes < nodes:
        option = f"--nodes {least_nodes}-{nodes}"
        if spare_nodes:
            raise UsageError(f"{option} and --spare-nodes: an elastic job lets all nodes work", f"--nodes {nodes}")
        if not options["global_batch_size"]:
            raise UsageError(
                f"{option} without --global-batch-size: the batch would change with the number of nodes",
                "add --global-batch-size",
            )
        counts = node_counts.usable_counts(least_nodes, nodes, check, option)
    elif accelerators and check:
        check(nodes - spare_nodes)
    return Job(
        name=name,
        nodes=counts[-1] if counts else nodes,
        instance=instance,
        accelerators=accelerators,
        image=image,
        train=tuple(words),
        options=options,
        data_paths=tuple(_paths([*data_paths, *_other_data(options)])),
        preprocess=_stage("preprocess", preprocess),
        # The checkpoint does not exist yet, so the check passes standard input in its place.
        convert=_stage("convert", convert, "-"),
        node_counts=counts if len(counts) > 1 else (),
        spare_nodes=spare_nodes,
    )


def _other_data(options: dict[str, Any]) -> list[str]:
    files = [options[name] for name in ("data_schedule", "skip_samples") if options[name]]
    return [*validation_sets.without_names(options["valid_data_path"]), *options["test_data_path"], *files]


def _paths(data: Sequence[str]) -> Iterator[str]:
    """Yield the paths of DATA without its weights."""
    for word in data:
        try:
            float(word)
        except ValueError:
            yield word.removeprefix("@")


def check_value(value: str, subject: str) -> None:
    """Raise UsageError for a text that a job file cannot pass on unchanged, even in quotes."""
    _check_secrets(value, subject)
    if CONTROL.search(value):
        raise UsageError(f"{subject}: {value!r} has a line break or another control character", "write it in one line")
    if HOME.match(value):
        raise UsageError(f"{subject}: {value!r}: nothing in a job file replaces ~", "write the directory out")


def _check_secrets(value: str, subject: str) -> None:
    """Raise UsageError for credentials. Job files are kept, so query parameters of URLs are refused as well."""
    credentials.check(value, subject, (*REFUSED, QUERY))


def changes_preset(model: str) -> str:
    """Return the error for new sizes of a preset, whose feed-forward size would not change with them."""
    return f"{', '.join(SIZES)} cannot change the model {model}: render a job without --model"


def _sizes(sizes: Mapping[str, str]) -> Iterator[str]:
    for variable, option in (SIZES | BATCHES).items():
        if sizes.get(variable):
            note(f"{option} {sizes[variable]}: from {variable} in the environment")
            yield from (option, sizes[variable])
    if any(sizes.get(variable) for variable in LAYOUT):
        yield from OWN_LAYOUT


def _without_config(words: Sequence[str]) -> Iterator[str]:
    is_file = False
    for word in words:
        if not is_file and word != "--config" and not word.startswith("--config="):
            yield word
        is_file = word == "--config" and not is_file


def _options_from_files_and_environment(context: click.Context) -> Iterator[str]:
    """Yield the options that --config and environment variables set, as arguments."""
    for option in context.command.params:
        source = context.get_parameter_source(str(option.name))
        if source is ParameterSource.ENVIRONMENT:
            value = option.value_from_envvar(context)
        elif source is ParameterSource.DEFAULT_MAP:
            value = context.lookup_default(str(option.name))
        else:
            continue
        if option.name not in context.params or not isinstance(option, click.Option):
            continue
        values = [str(entry) for entry in value] if isinstance(value, list | tuple) else [str(value)]
        if option.is_flag:
            yield from option.opts[:1] if context.params[str(option.name)] else ()
        elif option.multiple:
            yield from (word for entry in values for word in (option.opts[0], entry))
        else:
            yield from (option.opts[0], *values)


def _stage(name: str, text: str | None, *operands: str) -> tuple[str, ...] | None:
    """Parse the arguments of a stage and check them, followed by the job's `operands`, with the tool."""
    words = _words(name, text)
    if words is not None:
        stage_check.check(name, words, operands)
    return words


def _words(option: str, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--{option} {text!r}: {error}") from None
    if words[:1] == (f"lt-{option}",):
        words = words[1:]
    if not words:
        raise UsageError(f"--{option} without arguments", f"pass those of lt-{option}, in quotes")
    for word in words:
        check_value(word, f"--{option}")
    return words


def _check_data(data_words: Sequence[str], options: dict[str, Any], makes_data: bool) -> None:
    if "-" in data_words:
        raise UsageError("- (standard input): a job has none", "pass --preprocess 'ARGUMENTS', or @FILE")
    if makes_data and (data_words or options["mock_data"]):
        raise UsageError("DATA and --preprocess", "drop DATA: lt-train takes what lt-preprocess makes")
    if not makes_data and not data_words and not options["mock_data"]:
        raise UsageError("no DATA", "pass @FILE, or prefixes with their weights; --preprocess 'ARGUMENTS'; or --mock-data")


def _check_launch(options: dict[str, Any], nodes: int, keeps_nodes: bool) -> None:
    """Refuse options that make no sense in a job, or on its `nodes`. `keeps_nodes` as in `make`."""
    if options["plain"]:
        raise UsageError("--plain: the job reads lt-train's manifest", "drop it")
    if options["dry_run"]:
        raise UsageError("--dry-run in a job", "lt-train ... --dry-run here shows the configuration")
    if options["min_nodes"]:
        raise UsageError(
            "--min-nodes: the job's step ends on all nodes if one is lost",
            "--nodes MIN-MAX puts the job back into the queue, for as many nodes as there are",
        )
    if options["max_restarts"] and nodes > 1 and not keeps_nodes:
        raise UsageError("--max-restarts: the job's pods start again together", "drop it: the job's scheduler starts all")
    if options["spare_nodes"] and not options["max_restarts"]:
        raise UsageError("--spare-nodes without --max-restarts: no lost node would be replaced", "add --max-restarts")
    if options["spare_nodes"] >= nodes:
        raise UsageError(f"--spare-nodes {options['spare_nodes']} of {nodes} node(s): none is left", "raise --nodes")


def _check_config(options: dict[str, Any], gpu: str | None, accelerators: int, nodes: int) -> None:
    """Check the configuration on `nodes` nodes without reading data, which may be on another machine's disks."""
    from lt_train.config.checks import layout_problems
    from lt_train.config.cluster import GPUS, Cluster
    from lt_train.config.draft import assemble
    from lt_train.planner import layout_table

    lists = {"data_path": (), "train_data_path": (), "valid_data_path": (), "test_data_path": ()}
    settings = options | lists | {"mock_data": True, "eval_iters": 0, "split": None}
    if gpu is None:
        for problem in layout_problems(assemble(settings, (), Cluster(None, nodes, accelerators))):
            raise problem
        return
    choice = layout_table.choose_layout(settings, Cluster(GPUS[gpu], nodes, accelerators))
    if not choice.best.fits:
        warn(f"{choice.best.estimate} does not fit into the memory of {gpu}: see lt-train plan")
