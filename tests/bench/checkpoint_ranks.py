"""One rank of the checkpoints' benchmark: `checkpoint_ranks.py WHAT DIRECTORY JSON` measures, and rank 0 prints what all found.

`ours` is lt-train in this process, with options of its command line; `dcp` and `torchtitan` save the same number of bytes by
torch.distributed.checkpoint.async_save, as its documentation and as TorchTitan's `async_with_pinned_mem` call it. `processor` has
the processor's seconds for a GB, which other work on the machine hardly changes: of lt-train's writer and reader, and of torch's.
"""

import json
import os
import shutil
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

PLACE = {name: int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
# Of the other trainers' state: one tensor of a layer's projection.
TENSOR_BYTES = 64 << 20
# About as long as a step of lt-train beside it.
STEPS = 12
# With settings["saves"]: of a quiet run before each save.
QUIET_STEPS = 8


def ours(directory: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train with the options; adds the seconds of loading, and those from the process's start to the end of its first step."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "train"))
    from layouts import plan_of

    from lt_train.launch import launcher, worker
    from lt_train.process.rank_environment import RankEnvironment

    found: dict[str, Any] = {}
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    place = RankEnvironment(PLACE["RANK"], PLACE["LOCAL_RANK"], PLACE["WORLD_SIZE"], PLACE["WORLD_SIZE"], address, port, "bench")
    plan = launcher.prepare(plan_of([*settings["options"], "--save", str(directory)]))
    worker.prepare_process(plan.parallelism, plan.precision, plan.memory, plan.reporting)
    where = worker.prepare_device(plan.parallelism.device, place)
    from lt_train.checkpoint import training_state
    from lt_train.train import train_step

    load, train = training_state.load, train_step.Stepper.train

    def timed_load(*arguments: Any) -> None:
        begin = time.perf_counter()
        load(*arguments)
        found["load_seconds"] = time.perf_counter() - begin

    def timed_step(*arguments: Any) -> Any:
        result = train(*arguments)
        found.setdefault("first_step_seconds", time.time() - settings["started"])
        return result

    training_state.load, train_step.Stepper.train = timed_load, timed_step  # type: ignore[assignment, method-assign]
    if "saves" in settings:
        from lt_train.train.hooks.checkpoints import Checkpoints
        from lt_train.train.trainer import Trainer

        rhythm = Rhythm(settings["saves"])
        Trainer.run = rhythm.watched(Trainer.run)  # type: ignore[method-assign]
        Checkpoints.after_step = rhythm.after_step  # type: ignore[method-assign]
        found["save_seconds"] = rhythm.seconds
    code = worker.start(plan, place, prepared_device=where)
    if code:
        raise SystemExit(code)
    return found


class Rhythm:
    """Saves one after the other, each once the one before is durable and QUIET_STEPS have gone by since; then the run ends.

    Only the last is kept: the disk of a machine with one GPU may have no room for two. `seconds` are those that training has
    waited for the calls that begin to save.
    """

    def __init__(self, saves: int):
        self.left = saves
        self.quiet = 0
        self.seconds: list[float] = []

    def watched(self, run: Any) -> Any:
        """The method `run` of a trainer, which this then knows."""

        def run_known(trainer: Any, largest: Any) -> Any:
            self.trainer = trainer
            return run(trainer, largest)

        return run_known

    @property
    def after_step(self) -> Any:
        from lt_train.process import device

        def save_when_due(hook: Any, result: Any, stop: Any) -> None:
            hook.saver.poll(result.loss)
            self.quiet = 0 if hook.saver.is_writing else self.quiet + 1
            if self.quiet < QUIET_STEPS:
                return
            if not self.left:
                self.trainer.last_step = hook.state.iteration
                return
            self.left, self.quiet = self.left - 1, 0
            if PLACE["RANK"] == 0 and hook.saver._last:
                shutil.rmtree(hook.saver._last)
            begin = time.perf_counter()
            device.release(hook.device)
            hook.saver.save(result.loss, is_final=False)
            self.seconds.append(time.perf_counter() - begin)

        return save_when_due


def theirs(directory: Path, settings: dict[str, Any], as_torchtitan: bool) -> dict[str, Any]:
    """Seconds of the stall, until durable, and of steps before and beside the save."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    is_gpu = settings["device"] != "cpu"
    where = torch.device(settings["device"], PLACE["LOCAL_RANK"]) if is_gpu else torch.device("cpu")
    if is_gpu:
        torch.cuda.set_device(where)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // PLACE["WORLD_SIZE"]))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if is_gpu else "gloo")
    group = torch.distributed.new_group(backend="gloo", timeout=timedelta(minutes=10))
    count = max(1, settings["bytes"] // PLACE["WORLD_SIZE"] // TENSOR_BYTES)
    # Named by rank: DCP would otherwise write only one of what all ranks have.
    state = {f"{PLACE['RANK']}.{n}": torch.full((TENSOR_BYTES // 4,), float(n), device=where) for n in range(count)}

    square = torch.rand((8192, 8192), dtype=torch.bfloat16, device=where) if is_gpu else None

    def compute(seconds: float) -> None:
        """In place of the forward and the backward pass: what does not change the state."""
        begin = time.perf_counter()
        while square is not None and time.perf_counter() - begin < seconds:
            torch.mm(square, square)
            torch.cuda.current_stream().synchronize()

    def step(staged: Any = None) -> float:
        begin = time.perf_counter()
        compute(settings.get("step_seconds", 0.0))
        if staged is not None:
            staged.result()
        for tensor in state.values():
            tensor.mul_(0.999).add_(1e-3)
        if is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    stager: Any = DefaultStager(StagingOptions(is_gpu, True, is_gpu, is_gpu))
    # torch 2.11 closes it after it has staged once, and the next time then ends with a KeyError.
    stager._state_dict_stager.close = lambda: None
    kinds: dict[str, Any] = {"process_group": group}
    if as_torchtitan:
        kinds |= {"async_checkpointer_type": AsyncCheckpointerType.PROCESS, "async_stager": stager}
    elif is_gpu:
        kinds |= {"async_stager": stager}
    quiet = [step() for _ in range(STEPS)]
    found: dict[str, Any] = {}
    if "saves" in settings:
        # Buffers and processes, without writing everything twice.
        staging = kinds["async_stager"].stage(state)
        getattr(staging, "result", lambda: None)()
        started = dcp.async_save({"started": torch.zeros(1)}, checkpoint_id=str(directory / "started"), **kinds)
        getattr(started, "upload_completion", started).result()
    # The first save makes buffers and processes.
    for number in range(settings.get("saves", 2)):
        torch.distributed.barrier()
        begin = time.perf_counter()
        response = dcp.async_save(state, checkpoint_id=str(directory / f"save{number}"), **kinds)
        stall = time.perf_counter() - begin
        staged = getattr(response, "staging_completion", None)
        done = getattr(response, "upload_completion", response)
        # What the next step takes longer because its update waits for the copies.
        stall += max(0.0, step(staged) - statistics.median(quiet))
        beside = []
        while not done.done():
            beside.append(step())
        done.result()
        for path in (directory / f"save{number}").glob(f"__{PLACE['RANK']}_*"):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        found = {"stall": stall, "seconds": time.perf_counter() - begin, "quiet": quiet, "beside": beside}
    torch.distributed.barrier()
    return found


def processor(directory: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """User and system seconds for a GB of tensors that are parts of a larger one."""
    import io
    from types import SimpleNamespace

    import torch

    from lt_shared.files.checksums import FileChecksums
    from lt_train.checkpoint.shards import shard_files
    from lt_train.checkpoint.shards.stored_shards import Place
    from lt_train.checkpoint.tensor_reader import TensorReader

    flat = torch.rand(4 * TENSOR_BYTES // 4)
    parts = [flat[start : start + TENSOR_BYTES // 4] for start in range(0, len(flat), TENSOR_BYTES // 4)]
    found: dict[str, float] = {}

    def timed(name: str, work: Any) -> Any:
        before = os.times()
        result = work()
        after = os.times()
        found[name] = (after.user - before.user + after.system - before.system) / flat.nbytes * 1e9
        return result

    def by_torch() -> None:
        with (directory / "torch").open("wb") as file:
            for part in parts:
                torch.save(part.clone(), file)
            file.flush()
            os.fsync(file.fileno())

    def read_by_torch(results: Any) -> None:
        with (directory / "torch").open("rb") as file:
            for result in results:
                torch.load(io.BytesIO(file.read(result.size_in_bytes)))

    def read(results: Any) -> None:
        recorded = FileChecksums({"ours": tuple((result.size_in_bytes, result.crc32) for result in results)})
        with TensorReader(directory, recorded, verify=True) as reader:
            for result, part in zip(results, parts, strict=True):
                assert reader.begin(Place("ours", result.storage_data.offset, result.storage_data.length), part)
            reader.wait()

    def write() -> Any:
        tensors = [(SimpleNamespace(index=number), part) for number, part in enumerate(parts)]
        results = shard_files.WriteResults()
        shard_files.write(0, [(str(directory / "ours"), "ours", ([], tensors))], results)
        return results.get_nowait()[0]

    for _ in range(3):
        timed("torch.save", by_torch)
        results = timed("lt-train writes", write)
        timed("torch.load", lambda results=results: read_by_torch(results))
        timed("lt-train reads", lambda results=results: read(results))
    return found


def main() -> None:
    what, directory, settings = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    if what in ("ours", "processor"):
        found = (ours if what == "ours" else processor)(directory, settings)
    else:
        found = theirs(directory, settings, what == "torchtitan")
    if PLACE["RANK"] == 0:
        print(json.dumps(found), flush=True)
    # Without the ends of stagers and process groups, some of which hang.
    os._exit(0)


if __name__ == "__main__":
    main()
