"""Reports of the kernel, shells and glog about crashed processes and failed machines.

Device drivers are in `devices` and `accelerators`.
"""

import signal

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import fault, regex
from lt_monitor.logs.lines import Line

_SEGFAULT = regex(rb"\S{1,64}\[\d{1,10}\]: segfault at [0-9a-f]{1,16} ip [0-9a-f]{1,16}")
_TRAPS = {
    b"general protection": signal.SIGSEGV,
    b"invalid opcode": signal.SIGILL,
    b"divide error": signal.SIGFPE,
    b"stack segment": signal.SIGBUS,
    b"int3": signal.SIGTRAP,
}
_TRAP = regex(rb"traps: .{1,64}\[\d{1,10}\] (?:trap )?(?P<trap>" + b"|".join(_TRAPS) + rb")")
_DUMPED = regex(
    rb"(?:^|[: ])(?P<shell>Illegal instruction|Floating point exception) {0,20}\(core dumped\)|\*\*\* SIG(?P<glog>SEGV"
    rb"|ABRT|FPE|ILL) \(@"
)
_SHELL = {b"Illegal instruction": signal.SIGILL, b"Floating point exception": signal.SIGFPE}
_LOCKUP = regex(rb"BUG: soft lockup - CPU#\d|[Hh]ard LOCKUP on cpu \d|detected hard lockup")
# Errors that the machine has corrected are logged as well, and end nothing.
_MACHINE = regex(
    rb"Kernel panic - not syncing|\[Hardware Error\]: .{0,100}(?:Machine Check Exception|event severity: (?:fatal|recoverable))"
    rb"|mce: .{0,80}(?:Uncorrected|Fatal) |Memory failure: 0x[0-9a-f]{1,16}: .{0,60}(?:Killing"
    rb"|recovery action for .{1,60}: Failed)"
    rb"|EDAC \w{1,20}: \d{1,6} UE |PCIe Bus Error: severity=Uncorrected \(Fatal\)|pcieport .{1,80}: DPC: containment event"
)


def crash(line: Line) -> Record | None:
    """A process that used memory which is not its own, or an instruction that the processor does not have."""
    if _SEGFAULT.search(line.text) is not None:
        return fault(line, "killed", "unknown", "critical", signal=int(signal.SIGSEGV))
    if (match := _TRAP.search(line.text)) is not None:
        return fault(line, "killed", "unknown", "critical", signal=int(_TRAPS[match["trap"]]))
    if (match := _DUMPED.search(line.text)) is not None:
        number = _SHELL[match["shell"]] if match["shell"] else signal.Signals["SIG" + match["glog"].decode()]
        return fault(line, "killed", "unknown", "critical", signal=int(number))
    return None


def machine(line: Line) -> Record | None:
    """A processor that does not go on, or memory, a bus or the kernel itself that failed."""
    if _LOCKUP.search(line.text) is not None:
        return fault(line, "hung-task", "unknown", "critical")
    if _MACHINE.search(line.text) is not None:
        return fault(line, "node-failure", "root", "critical")
    return None
