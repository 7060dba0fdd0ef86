"""lt-train: pretrain decoder language models with megatron-core."""

from lt_shared import lazy_exports

# Not typing's, whose import would come before lt_shared leaves Ctrl-C to the kernel.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from lt_train.commands.plan_function import Layout as Layout
    from lt_train.commands.plan_function import Plan as Plan
    from lt_train.commands.plan_function import plan as plan
    from lt_train.commands.pretrain_function import PretrainedRun as PretrainedRun
    from lt_train.commands.pretrain_function import pretrain as pretrain

__version__: str
__all__ = ["Layout", "Plan", "PretrainedRun", "__version__", "plan", "pretrain"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        "lt-train",
        dict.fromkeys(__all__, "lt_train.commands.plan_function")
        | dict.fromkeys(("PretrainedRun", "pretrain"), "lt_train.commands.pretrain_function"),
    )
