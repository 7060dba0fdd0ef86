"""Read training logs of lt-train and Megatron: events as JSON lines, summaries of runs, a picture of the loss."""

from lt_shared import lazy_exports

# Not typing's, whose import would come before lt_shared leaves Ctrl-C to the kernel.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lt_monitor.runs.training_logs import TrainingLogs as TrainingLogs
    from lt_monitor.runs.training_logs import read as read

__version__: str
__all__ = ["TrainingLogs", "__version__", "read"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, "lt-monitor", dict.fromkeys(__all__, "lt_monitor.runs.training_logs"))
