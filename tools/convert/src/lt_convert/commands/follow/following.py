"""Follow a run: convert each of its complete checkpoints once, in order, run a command on each, and keep the newest.

If a conversion or a command fails, the pass goes on with the next checkpoint, and the next pass tries again. Checkpoints are
converted in the order of their iterations. A checkpoint that the run deletes before its conversion is passed over.
"""

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from lt_convert.commands import conversion
from lt_convert.commands.conversion import Request
from lt_convert.commands.follow.state import Entry, State
from lt_convert.engine.receipt import ConversionRecord
from lt_convert.formats import HUGGINGFACE, directories, run_checkpoints
from lt_convert.formats.run_checkpoints import RunCheckpoint
from lt_convert.tensors.checksums import Checksums
from lt_shared.console import BadData, CannotCreate, IoFailure, NoInput, TryAgain, UsageError, note, warn
from lt_shared.contracts.checkpoint_layout import TRACKER
from lt_shared.contracts.manifest import Checkpoint
from lt_shared.files import storage

PASSING = (BadData, NoInput, IoFailure, TryAgain, CannotCreate)
# The file that a trainer writes last in a checkpoint, or almost last.
_LAST_WRITTEN = (
    ".metadata",
    "weights/.metadata",
    "model_and_optim/.metadata",
    "metadata.pkl",
    "model.safetensors.index.json",
    "mp_rank_00/model_optim_rng.pt",
    "mp_rank_00_000/model_optim_rng.pt",
)
# Stands for the path of a converted checkpoint in the command.
_PATH_FIELD = "{}"
_STANDARD_ERROR = 2
_GRACE_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class FollowRequest:
    """The options of `follow`: checkpoints of `run` become `directory`/NAME in the format `to`, and `each` is run on them.

    With `ema`, the averages in checkpoints of lt-train are converted in place of the weights.
    """

    run: str
    to: str
    directory: str
    dtype: str | None = None
    each: str | None = None
    keep_last: int | None = None
    ema: bool = False


class Follower:
    """Makes passes over the run of a request; `converted` is called with every checkpoint that is new."""

    def __init__(self, request: FollowRequest, state: State, converted: Callable[[Checkpoint], None]):
        self.request = request
        self.state = state
        self.converted = converted
        self.directory = state.path.parent
        self._told: set[str] = set()

    def make_pass(self) -> bool:
        """Convert new checkpoints, run the command that has not succeeded on one yet, and delete old conversions.

        Returns whether everything succeeded. Raises NoInput if the run does not exist, BadData for a tracker that names no
        iteration.
        """
        complete = {one.name: one for one in run_checkpoints.complete(self.request.run)}
        for name, one in complete.items():
            self._notice(name, one)
        went_well = self._tell_of_damaged(complete.values())
        for name, entry in self.state.in_order():
            went_well &= self._handle(name, entry, complete.get(name))
            self._delete_expired()
        return went_well

    def _notice(self, name: str, one: RunCheckpoint) -> None:
        """Make an entry for a new checkpoint, or another one for a checkpoint that was written again."""
        written = _written(one.directory)
        entry = self.state.entries.get(name)
        if entry is None or (entry.converted and entry.written != written and self._is_settled(written)):
            if entry is not None:
                self._put_aside(name)
            self.state.entries[name] = Entry(one.iteration, written)

    def _tell_of_damaged(self, whole: Collection[RunCheckpoint]) -> bool:
        """Warn once of each incomplete checkpoint that nobody writes any more; return whether there is none.

        Also warn if TorchTitan's newest checkpoint is incomplete: it may still be written.
        """
        broken = {one.directory: one.iteration for one in run_checkpoints.damaged(self.request.run, whole)}
        pending = {one.directory for one in run_checkpoints.unfinished(self.request.run, whole)} - broken.keys()
        newest = max((one.iteration for one in whole), default=-1)
        for directory in sorted(broken.keys() - self._told):
            age = f"older than iteration {newest}" if broken[directory] < newest else "the newest of the run"
            warn(f"{directory}: is not complete, and {age}: not converted")
        for directory in sorted(pending - self._told):
            warn(f"{directory}: is not complete yet, or was left so: not converted")
        self._told |= broken.keys() | pending
        return not broken

    def _is_settled(self, written: int | None) -> bool:
        """Whether nothing of a checkpoint is newer than the run's tracker, which Megatron-LM writes after it."""
        tracker = Path(self.request.run, TRACKER)
        return written is not None and (not tracker.is_file() or tracker.stat().st_mtime_ns >= written)

    def _put_aside(self, name: str) -> None:
        """Rename the conversion of an older checkpoint with the same name."""
        place = self.directory / name
        if place.exists():
            number = next(number for number in range(1, 1 << 20) if not (self.directory / f"{name}.{number}").exists())
            os.rename(place, self.directory / f"{name}.{number}")
            warn(f"{self.request.run}/{name}: was written again: what was made of the older one is now {place}.{number}")

    def _handle(self, name: str, entry: Entry, one: RunCheckpoint | None) -> bool:
        if not entry.converted and not self._convert(name, entry, one):
            # Deleted by the run is no failure.
            return one is None or not _is_there(one.directory)
        if self.request.each is None or entry.succeeded or entry.deleted:
            return True
        return self._run_command(name, entry, self.request.each)

    def _convert(self, name: str, entry: Entry, one: RunCheckpoint | None) -> bool:
        if one is None:
            del self.state.entries[name]
            return False
        destination = str(self.directory / name)
        try:
            # TorchTitan saves its last step in Hugging Face's format: steps before it have another one.
            copies = self.request.to == HUGGINGFACE.name
            checkpoint = conversion.convert(
                Request(
                    one.directory,
                    self.request.to,
                    destination,
                    self.request.dtype,
                    optimizer=False,
                    ema=self.request.ema,
                    copies=copies,
                )
            )
        except PASSING as error:
            if _is_there(one.directory):
                warn(f"{error}: tried again in the next pass")
            else:
                note(f"{one.directory}: the run deleted it before it was converted")
                del self.state.entries[name]
            return False
        entry.converted, entry.written = True, _written(one.directory)
        self.state.save()
        self.converted(checkpoint)
        return True

    def _run_command(self, name: str, entry: Entry, each: str) -> bool:
        place = self.directory / name
        if not place.is_dir():
            warn(f"{place}: is gone before its command succeeded: not tried again")
            entry.deleted = True
            self.state.save()
            return True
        command = _fill_in_path(each, str(place))
        began = time.monotonic()
        entry.attempts += 1
        entry.exit_code = _run_command_line(command)
        entry.succeeded = entry.exit_code == 0
        self.state.save()
        seconds = time.monotonic() - began
        if entry.succeeded:
            note(f"{command}: succeeded in {seconds:.1f} s")
        else:
            warn(
                f"{command}: exit code {entry.exit_code} after {seconds:.1f} s (attempt {entry.attempts}), again in the next pass"
            )
        return entry.succeeded

    def _delete_expired(self) -> None:
        """Delete all but the newest converted checkpoints, but none whose command has not succeeded."""
        if self.request.keep_last is None:
            return
        converted = [(name, entry) for name, entry in self.state.in_order() if entry.converted and not entry.deleted]
        for name, entry in converted[: -self.request.keep_last]:
            if self.request.each is None or entry.succeeded:
                _delete_conversion(self.directory / name)
                entry.deleted = True
                self.state.save()


def follow(request: FollowRequest, interval_seconds: float | None, converted: Callable[[Checkpoint], None]) -> bool:
    """Make a pass, or with an interval passes until a signal ends the process; whether all of the last pass went well.

    Raises as `State.open` and, without an interval, as `Follower.make_pass`.
    """
    if storage.is_remote(request.directory.removeprefix("file://")):
        raise UsageError(f"{request.directory}: the command needs a local or mounted path")
    if request.each is not None:
        _check_command(request.each)
    request = dataclasses.replace(
        request, run=directories.normalized(request.run), directory=directories.normalized(request.directory)
    )
    if f"{request.run}/".startswith(f"{request.directory}/"):
        raise UsageError(f"{request.directory}: is the run, or holds it", "choose another output")
    # None as in states of follow before it had the option.
    options = {"run": request.run, "to": request.to, "dtype": request.dtype, "ema": True if request.ema else None}
    with State.open(Path(request.directory), options) as state:
        follower = Follower(request, state, converted)
        if interval_seconds is None:
            return follower.make_pass()
        last_error = ""
        while True:
            try:
                follower.make_pass()
            except (NoInput, BadData, IoFailure) as error:
                # The run has not begun, or its tracker is being written.
                if str(error) != last_error:
                    warn(f"{error}: waiting")
                last_error = str(error)
            time.sleep(interval_seconds)


def _written(directory: str) -> int | None:
    """Return when a checkpoint was finished, in nanoseconds. None on a remote store: its checkpoints count as never rewritten."""
    for name in _LAST_WRITTEN:
        with contextlib.suppress(OSError):
            return os.stat(f"{directory}/{name}").st_mtime_ns
    return None


def _is_there(directory: str) -> bool:
    try:
        return bool(directories.listing(directory))
    except NoInput:
        return False


def _delete_conversion(directory: Path) -> None:
    """Delete the files that a conversion wrote. Other files in `directory`, such as the scores of an evaluation, stay."""
    record = ConversionRecord.read(str(directory))
    if record is None:
        return
    # The files that make it a checkpoint for other tools go first, the record last. So a kill leaves nothing that is taken for a
    # checkpoint, and the next call deletes the rest.
    for name in reversed(list(record.files.sizes)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(directory / name)
        for folder in list(Path(name).parents)[:-1]:
            with contextlib.suppress(OSError):
                os.rmdir(directory / folder)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(directory / Checksums.RECORD)
    with contextlib.suppress(OSError):
        os.rmdir(directory)


def _check_command(command: str) -> None:
    """Raise UsageError for a command that would be the same for each checkpoint."""
    if _PATH_FIELD not in command:
        raise UsageError(f"--each {command!r}: has no {{}}", "{} stands for the path of the checkpoint")


def _fill_in_path(command: str, path: str) -> str:
    """Replace {} in the command by the path, quoted for the shell."""
    return command.replace(_PATH_FIELD, shlex.quote(path))


def _run_command_line(command: str) -> int:
    """Run a command line with sh and return its exit code, 128+n for signal n.

    The command has a process group of its own, which ends when this process is told to end. It has no standard input.
    """
    sys.stderr.flush()
    with _signals_deferred() as arrived:
        # The command's standard output goes to standard error, because the manifest is on standard output.
        child = subprocess.Popen(
            ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=_STANDARD_ERROR, start_new_session=True
        )
    try:
        for number in arrived:
            signal.raise_signal(number)
        code = child.wait()
    except BaseException:
        _end_command(child)
        raise
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _signals_deferred() -> Iterator[list[int]]:
    """Collect the signals that this process handles. An exception of a handler inside Popen would leave the command running."""
    arrived: list[int] = []
    in_main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if in_main_thread else ()
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield arrived
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end_command(child: "subprocess.Popen[bytes]") -> None:
    """Ask all processes of the command to end, and kill those that do not."""
    _signal_command(child, signal.SIGTERM)
    try:
        child.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal_command(child, signal.SIGKILL)
        child.wait()


def _signal_command(child: "subprocess.Popen[bytes]", number: int) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return
