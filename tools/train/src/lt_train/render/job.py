"""What a job file is made of: the stages, the machines, and lt-train's own command line, checked before anything queues.

The words of lt-train's command line stand in the job file as they were given, each quoted. They are parsed here as well, so that
a misspelt option or a layout that does not divide is an error now and not after hours in a queue.
"""

import dataclasses
import shlex
from collections.abc import Sequence
from typing import Any

from lt_shared import storage
from lt_shared.console import UsageError, warn
from lt_train.instances import Instance


@dataclasses.dataclass(frozen=True)
class Job:
    """`train` are the words of lt-train, without data when `preprocess` makes it; `options` are those words parsed.

    `preprocess` and `convert` are words of lt-preprocess and lt-convert, None for no such stage. `save` is the run's directory or
    URL. `accelerators` is the number of ranks on a node, None when lt-train is to find out.
    """

    name: str
    nodes: int
    instance: Instance | None
    accelerators: int | None
    image: str | None
    train: tuple[str, ...]
    options: dict[str, Any]
    preprocess: tuple[str, ...] | None
    convert: tuple[str, ...] | None

    @property
    def save(self) -> str:
        return str(self.options["save"]).rstrip("/")

    @property
    def environment(self) -> dict[str, str]:
        return self.instance.environment() if self.instance else {}

    def beside(self, name: str) -> str:
        """A file of the job: in SAVE, or in the working directory when that is a URL."""
        return f"lt-{self.name}-{name}" if storage.is_remote(self.save) else f"{self.save}/{name}"


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
) -> Job:
    """A checked job. Raises UsageError for words that lt-train does not know, BadConfig for a plan that cannot run there.

    `program` is what the user has called, for messages.
    """
    from lt_train.cli import command

    options = command.make_context(program, list(words)).params
    data = options.pop("data")
    _check_data(data, options, preprocess is not None)
    if not options["save"]:
        raise UsageError(
            "no --save: a job that saves nothing starts anew each time", "add --save DIRECTORY on a shared filesystem"
        )
    if convert is not None and "-o" not in shlex.split(convert) and "--output" not in shlex.split(convert):
        raise UsageError("--convert without -o: lt-convert must know where to write", "--convert '--to hf -o DIRECTORY'")
    if options["plain"]:
        raise UsageError("--plain: the job reads lt-train's manifest", "drop it")
    accelerators = accelerators or (instance.accelerators if instance else None)
    if instance and instance.gpu and accelerators:
        _check_plan(options, instance.gpu, nodes, accelerators)
    return Job(
        name=name,
        nodes=nodes,
        instance=instance,
        accelerators=accelerators,
        image=image,
        train=tuple(words),
        options=options,
        preprocess=_words("preprocess", preprocess),
        convert=_words("convert", convert),
    )


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
    return words


def _check_data(data: Sequence[str], options: dict[str, Any], makes_data: bool) -> None:
    given = [*data, *options["data_path"], *options["train_data_path"]]
    if "-" in given:
        raise UsageError("- (standard input): a job has none", "pass --preprocess 'ARGUMENTS', or @FILE")
    if makes_data and (given or options["mock_data"]):
        raise UsageError("DATA and --preprocess", "drop DATA: lt-train takes what lt-preprocess makes")
    if not makes_data and not given and not options["mock_data"]:
        raise UsageError("no DATA", "pass @FILE, or prefixes with their weights; --preprocess 'ARGUMENTS'; or --mock-data")


def _check_plan(options: dict[str, Any], gpu: str, nodes: int, accelerators: int) -> None:
    """Assemble the plan for that cluster, without looking at data, which may be on another machine's disks."""
    from lt_train import planning
    from lt_train.cluster import GPUS, Cluster

    lists = {"data_path": (), "train_data_path": (), "valid_data_path": (), "test_data_path": ()}
    settings = options | lists | {"mock_data": True, "eval_iters": 0, "split": None}
    choice = planning.on_cluster(settings, Cluster(GPUS[gpu], nodes, accelerators))
    if not choice.best.fits:
        warn(f"{choice.best.estimate} does not fit into a {gpu}: see lt-train plan")
