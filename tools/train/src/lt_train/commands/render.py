"""`lt-train render`: print job files for Slurm and Kubernetes."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import click

from lt_shared import console
from lt_shared.console import UsageError
from lt_train.config import cluster, instances
from lt_train.render import elastic, machines

EXAMPLES = """
lt-train render slurm --nodes 2 --model llama2-70b --bf16 --parallel auto --save /fsx/run1 @/fsx/web.manifest
lt-train render k8s --nodes 2 --image registry/lt --model llama3-8b --bf16 --parallel auto --save /fsx/run1 @/fsx/web.manifest
"""
SLURM_EXAMPLES = """
lt-train render slurm --nodes 2 --instance-type p5.48xlarge --model llama3-8b --bf16 --save /fsx/run1 @/fsx/web.manifest | sbatch
lt-train render slurm --model tiny --save /fsx/run2 --preprocess '/fsx/corpus --tokenizer /fsx/gpt2 -o /fsx/web' | sbatch
"""
K8S_EXAMPLES = """
lt-train render k8s --image registry/lt --model llama3-8b --bf16 --parallel auto --save /fsx/run1 @/fsx/web | kubectl apply -f -
"""
Function = Callable[..., Any]
# Options that a job command does not have are parsed and checked as options of lt-train.
PASSED_ON = {"ignore_unknown_options": True}


def _complete_instance_type(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete types with GPUs, also with SageMaker's "ml." in front."""
    prefix = "ml." if incomplete.startswith("ml") else ""
    names = [f"{prefix}{name}" for name, instance in instances.INSTANCES.items() if instance.gpu]
    return [name for name in [*names, machines.NONE] if name.startswith(incomplete)]


class TrainingArguments(click.Argument):
    """Options and data of lt-train. click does not parse them in this command, but completes them like lt-train."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        from lt_train.config.options import schema

        run = schema()
        before = (ctx.params.get("train") or ("",))[-1]
        for option in run.params:
            if isinstance(option, click.Option) and before in option.opts and not option.is_flag:
                return option.shell_complete(click.Context(run), incomplete)
        return [CompletionItem(incomplete, type="file")]


class JobCommand(console.Command):
    """Complete the options of the job and then the options of lt-train."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from lt_train.config.options import schema

        job_items = super().shell_complete(ctx, incomplete)
        job_values = {item.value for item in job_items}
        run = schema()
        return job_items + [item for item in run.shell_complete(click.Context(run), incomplete) if item.value not in job_values]


def stages(function: Function) -> Function:
    for option in reversed(
        (
            click.option("--job-name", default="lt-train", help="Name of the job."),
            click.option("--preprocess", metavar="ARGUMENTS", help="Arguments of lt-preprocess, to make the data first."),
            click.option("--convert", metavar="ARGUMENTS", help="Arguments of lt-convert, to convert the last checkpoint."),
            click.argument("train", cls=TrainingArguments, nargs=-1, type=click.UNPROCESSED, metavar="LT-TRAIN-ARGUMENTS..."),
        )
    ):
        function = option(function)
    return function


class Renderers(console.Group):
    """List the renderers in the error for an unknown one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            names = " or ".join(f"lt-train render {name}" for name in self.list_commands(ctx))
            raise UsageError(f"no renderer {args[0]!r}", names)
        return super().resolve_command(ctx, args)


@click.group(cls=Renderers, examples=EXAMPLES)
def command() -> None:
    """Print a job file for a scheduler; nothing is submitted.

    Options that the job does not have, and data, are passed to lt-train. They are checked and written into the job file.
    """


@command.command(cls=JobCommand, examples=SLURM_EXAMPLES, context_settings=PASSED_ON)
@click.option("--nodes", type=elastic.NodeRange(), default="1", metavar="N|MIN-MAX", help="Nodes of the job; 1-4 for any number.")
@click.option(
    "--instance-type",
    metavar="TYPE",
    shell_complete=_complete_instance_type,
    help="Its EFA and NCCL variables are set, and the layout is checked for its GPUs.",
)
@click.option("--gpus-per-node", type=cluster.GPUS_PER_NODE, help="GPUs to ask Slurm for; needed where it counts them (GRES).")
@click.option("--time", "time_limit", help="Time limit, as of sbatch. Before it the run saves and is queued again.")
@click.option("--image", help="Container for pyxis: a .sqsh file, or an address. IMAGE in the environment comes before it.")
@click.option("--container-mounts", default="/fsx:/fsx", help="As of pyxis; FSX_MOUNT in the environment comes before it.")
@click.option("--partition", metavar="NAME", help="Partition of the job; several with commas.")
@click.option("--account", metavar="NAME", help="Account that the job is charged to.")
@click.option("--qos", metavar="NAME", help="Quality of service of the job.")
@click.option("--reservation", metavar="NAME", help="Reservation that the job runs in.")
@click.option("--array", metavar="RANGE", help="Start the job as an array, as of sbatch. %a in --save is the task's number.")
@click.option(
    "--sbatch-option", metavar="NAME[=VALUE]", multiple=True, help="Any other option of sbatch: constraint=h100. Repeatable."
)
@click.option("--module", metavar="NAME", multiple=True, help="Environment module that the job loads first. Repeatable.")
@click.option("--venv", metavar="DIRECTORY", help="Virtual environment with the lt tools, on all nodes.")
@click.option("--conda", metavar="NAME", help="Conda environment with the lt tools, by name or path, on all nodes.")
@click.option("--chain", type=click.Choice(["job", "dependency"]), default="job", help="All stages in one job, or one job each.")
@stages
def slurm(chain: str, time_limit: str | None, container_mounts: str, **options: Any) -> None:
    """Print a script for sbatch, or with --chain dependency one for bash that submits several."""
    from lt_train.render import sbatch, sbatch_options

    instance = machines.instance_named(options["instance_type"], options["gpus_per_node"])
    named = {name: options[name] for name in ("partition", "account", "qos", "reservation", "array")}
    environment = sbatch_options.NodeEnvironment(options["module"], options["venv"], options["conda"])
    gpus, more = options["gpus_per_node"], options["sbatch_option"]
    script_options = sbatch.SbatchOptions(time_limit, container_mounts, gpus, named, more, environment)
    click.echo(sbatch.render(_job(options, instance, {}, keeps_nodes=True), chain, script_options), nl=False)


@command.command("k8s", cls=JobCommand, examples=K8S_EXAMPLES, context_settings=PASSED_ON)
@click.option("--nodes", type=cluster.NODES, default=1, envvar=["LT_TRAIN_NODES", "NUM_NODES"], help="Nodes of the job.")
@click.option(
    "--instance-type",
    metavar="TYPE",
    shell_complete=_complete_instance_type,
    envvar=["LT_TRAIN_INSTANCE_TYPE", "INSTANCE_TYPE"],
    help=f"Its GPUs and EFA devices are asked for; by default {machines.DEFAULT}'s. {machines.NONE}: nodes without EFA.",
)
@click.option(
    "--gpus-per-node",
    type=cluster.GPUS_PER_NODE,
    envvar=["LT_TRAIN_GPUS_PER_NODE", "GPU_PER_NODE"],
    help="GPUs to ask for; by default all GPUs of the instance.",
)
@click.option("--image", envvar=["LT_TRAIN_IMAGE", "IMAGE_URI"], help="Container image with the lt tools.")
@click.option(
    "--kind",
    type=click.Choice(["pytorchjob", "hyperpodpytorchjob", "jobset", "trainjob"]),
    default="pytorchjob",
    help="What trains: for the training operator, HyperPod's, the JobSet controller, or the Kubeflow Trainer (v2).",
)
@click.option("--namespace", help="Namespace of all objects; by default kubectl's, or 'default' if data are made first.")
@click.option("--queue", metavar="NAME", help="LocalQueue of Kueue that admits the training.")
@click.option("--service-account", metavar="NAME", help="Of the pods, for example one with access to S3.")
@click.option("--toleration", metavar="TAINT", multiple=True, help="KEY, KEY:EFFECT or KEY=VALUE:EFFECT. Repeatable.")
@click.option("--node-selector", metavar="KEY=VALUE", multiple=True, help="Of the pods that train. Repeatable.")
@click.option("--priority-class", metavar="NAME", help="Of the pods that train.")
@click.option("--cpus", metavar="QUANTITY", help="CPUs that each pod that trains requests, for example 90.")
@click.option("--memory", metavar="QUANTITY", help="Memory that each pod that trains requests, for example 1500Gi.")
@click.option("--shared-memory", metavar="QUANTITY", help="Size of /dev/shm; by default half of the node's memory.")
@click.option("--claim", default="fsx-claim", help="PersistentVolumeClaim of the shared filesystem.")
@click.option("--mount", default="/fsx", help="Where it is mounted.")
@click.option("--download", multiple=True, metavar="URL", help="File to download first. Repeatable.")
@click.option("--download-to", help="Directory for these files; by default MOUNT/download.")
@stages
def k8s(kind: str, queue: str | None, download: tuple[str, ...], download_to: str | None, **options: Any) -> None:
    """Print manifests for kubectl: the training, a CronJob of lt-monitor, and TensorBoard with --tensorboard-dir.

    With --download or --preprocess a Job without GPUs makes the data first, and the training is suspended until they are there.
    The number of nodes is fixed; render slurm has --nodes 1-64.
    """
    from lt_train.render import kubernetes
    from lt_train.render.pods import PodOptions

    instance = machines.instance_of_pods(options["instance_type"], options["gpus_per_node"], options["node_selector"])
    job = _job(options | {"nodes": (options["nodes"], options["nodes"])}, instance, os.environ)
    pods = PodOptions(
        claim=options["claim"],
        mount=options["mount"],
        namespace=options["namespace"],
        service_account=options["service_account"],
        tolerations=options["toleration"],
        node_selectors=options["node_selector"],
        priority_class=options["priority_class"],
        cpus=options["cpus"],
        memory=options["memory"],
        shared_memory=options["shared_memory"],
    )
    directory = (download_to or f"{pods.mount.rstrip('/')}/download").rstrip("/")
    click.echo(kubernetes.render(job, kind, pods, queue, download, directory), nl=False)


def _job(options: dict[str, Any], instance: Any, sizes: Mapping[str, str], keeps_nodes: bool = False) -> Any:
    from lt_train.render import job_spec

    return job_spec.make(
        options["train"],
        program=click.get_current_context().command_path,
        name=options["job_name"],
        nodes=options["nodes"][1],
        instance=instance,
        accelerators=options["gpus_per_node"],
        image=options["image"],
        preprocess=options["preprocess"],
        convert=options["convert"],
        sizes=sizes,
        least_nodes=options["nodes"][0],
        keeps_nodes=keeps_nodes,
    )
