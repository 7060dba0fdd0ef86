"""Crashes of programs that are not Python.

C++'s terminate, Rust's and Go's panics, the checks of glibc and glog, the dynamic loader, and a shell that finds no program.
"""

import signal

from lt_monitor.events.records import Record
from lt_monitor.logs.labels import margins
from lt_monitor.logs.line_parsers import BRACKETS, fault, regex
from lt_monitor.logs.lines import Line

KEYWORDS = (
    (b"terminate called", b"terminating due to", b"terminating with uncaught", b"what():  ", b" panicked at ", b"panic: "),
    (b"Check failed: ", b"LLVM ERROR: ", b"double free or corruption", b"free(): ", b"malloc(): ", b"realloc(): "),
    (b"munmap_chunk(): ", b"corrupted size vs. ", b"corrupted double-linked", b"stack smashing detected", b"(core dumped)"),
    (b"symbol lookup error", b"error while loading shared", b": command not found", b"can't open file ", b"cannot execute"),
    (b": syntax error near", b": syntax error: ", b": unbound variable", b": Permission denied", b"docker: Error response"),
    (b"container creation failed", b"FATAL:   "),
    (b"Illegal instruction", b"Floating point exception"),
    (b": No module named ", b"finding module spec", b"No such file or directory", b"executable file not found", b"version `G"),
    (b"EnvironmentNameNotFound", b"EnvironmentLocationNotFound", b"CommandNotFoundError", b"Lmod has detected"),
    (b"locate a modulefile", b": unrecognized option", b": invalid option", b"plugin name for mpi/", b"find mpi plugin"),
    (b"zsh: permission", b": bad interpreter: ", b": Is a directory"),
    (b": Assertion `", b"Fatal glibc error: ", b"Assertion failed: ", b" received at time=", b" received by PID"),
    (b"Segfault encountered", b": not found", b".pm in @INC", b"fish: Unknown"),
    (b"Fatal error condition", b"ptxas fatal", b"nvcc fatal", b"nvlink fatal", b"nvlink error"),
    (b"ptxas error", b"; error   : ", b"fatbinary fatal"),
    (b"Timeout (", b"] signal (", b"F0000 00:00:", b"Non-OK-status", b"FATAL Flags parsing error"),
)

_TERMINATE = regex(
    rb"\bterminate called (?:after throwing an instance of|without an active exception|recursively)"
    rb"|\bterminating (?:due to|with) uncaught"
)
_WHAT = regex(rb"^\s{0,4}what\(\):  \S")
_PANIC = regex(rb"^" + BRACKETS + rb"(?:thread '[^'\n]{0,100}'(?: \(\d{1,12}\))? panicked at |panic: (?:runtime error|\S))")
_CHECK = regex(rb"(?:^F\d{4} |^\[?F\d{8}|: F |\bF \S{1,200}\] |^\s{0,2})[^\n]{0,200}?Check failed: |^LLVM ERROR: ")
_HEAP = regex(
    rb"^" + BRACKETS + rb"(?:double free or corruption|free\(\): |malloc\(\): |realloc\(\): |munmap_chunk\(\): "
    rb"|corrupted (?:size vs\. |double-linked)"
    rb"|\*\*\* (?:stack smashing detected|Error in `))"
)
# glibc's assert and the checks within glibc, musl's and macOS's; CUDA's, of a thread, are errors of the device.
_ASSERTION = regex(
    rb"^" + BRACKETS + rb"(?:(?:[\w./+@-]{1,200}: )?[\w./+@<>-]{1,300}:\d{1,7}: (?:[^\r\n]{1,4000}: )?"
    rb"Assertion `[^\r\n]{1,4000}' failed\.\s{0,9}$|Fatal glibc error: \S"
    rb"|Assertion failed: \([^\r\n]{1,4000}\), function [^\r\n]{1,1000}, file [^\r\n]{1,300}, line \d{1,7}"
    rb"|Assertion failed: [^\r\n]{1,4000} \(\S{1,300}: [^\r\n]{1,1000}: \d{1,7}\)\s{0,9}$)"
)
# The handlers of absl (Ray, JAX, TensorFlow) and of PyTorch, aws-crt's assertions.
_HANDLED = regex(
    rb"\*\*\* SIG(?P<absl>SEGV|ABRT|FPE|ILL|BUS|TRAP) received (?:at time=|by PID )\d"
    rb"|^" + BRACKETS + rb"(?:(?P<torch>!!!!!!! Segfault encountered !!!!!!!)"
    rb"|Fatal error condition occurred in \S{1,400}:\d{1,7}: )"
)
# Julia's handler, absl's fatal lines, and faulthandler, which prints the stacks of a program that hangs.
_JULIA = regex(rb"^\[\d{1,10}\] signal \((?P<number>\d{1,2})(?:\.\d{1,3})?\): ")
_FATAL = regex(rb"^F\d{4} \d\d:\d\d:[\d.]{1,30} {1,9}\d{1,20} [^\s\]]{1,200}:\d{1,6}\] ")
_HUNG = regex(rb"^Timeout \((?:\d{1,4} days?, )?\d{1,5}:\d\d:\d\d(?:\.\d{1,6})?\)!\s{0,9}$")
_FLAGS = regex(rb"^FATAL Flags parsing error: ")
_SIGNAL = regex(
    # bash fills the word up to 24 characters.
    rb"(?P<name>Illegal instruction|Floating point exception|Trace/breakpoint trap)"
    rb"(?: {0,20}\(core dumped\)|(?= {2,9}\S)|\s{0,9}$)"
)
_SIGNALS = {b"Illegal instruction": 4, b"Floating point exception": 8, b"Trace/breakpoint trap": 5}
_INSTALLATION = regex(
    rb"^\S{1,300}: (?:symbol lookup error: |error while loading shared libraries: |can't open file '"
    rb"|(?:line \d{1,9}: )?\S{1,300}: (?:command not found|cannot execute)"
    rb"|(?:line )?\d{1,9}: [^\s:]{1,300}: not found\s{0,9}$"
    rb"|line \d{1,9}: (?:syntax error|\S{1,300}: (?:Permission denied|unbound variable)))"
    # An interpreter without the script or the module, a shell and env without the program.
    rb"|^\S{0,200}python[\d.]{0,8}: (?:No module named |Error while finding module specification for '|can't find '__main__')"
    rb"|^(?:\S{0,200}/)?(?:ba|z|da|k)?sh: (?:\d{1,9}: )?[^\s:]{1,300}: No such file or directory\s{0,9}$"
    rb"|^(?:\S{0,200}/)?(?:ba|z|da|k|a)?sh: [^\s:]{1,300}: not found\s{0,9}$"
    rb"|^(?:zsh|\S{1,300}:\d{1,9}): command not found: [^\s:]{1,300}\s{0,9}$|^fish: Unknown command:? \S"
    # A file without execute permission. /proc and /dev are excluded, because scripts write to them.
    rb"|^(?:\S{0,200}/)?(?:ba|z|da|k|c|tc|fi)?sh: (?:\d{1,9}: )?(?!/(?:proc|sys|dev)/)[^\s:]{1,300}: "
    rb"(?:Permission denied|Is a directory)\s{0,9}$"
    rb"|^\S{1,300}\.sh: \d{1,9}: (?!/(?:proc|sys|dev)/)[^\s:]{1,300}: Permission denied\s{0,9}$"
    rb"|^zsh: permission denied: \S|^\S{1,300}: (?:line \d{1,9}: )?\S{1,300}: \S{1,300}: bad interpreter: "
    rb"|^(?:/usr/bin/)?(?:env|nohup|nice|ionice|chrt|timeout|time|stdbuf|setsid|taskset|numactl|sudo|exec|xargs): "
    rb"(?:failed to (?:run command|execute) |cannot run |execution of )?\W{0,4}[\w./-]{1,200}\W{0,4}: "
    rb"(?:Permission denied|No such file or directory)\s{0,9}$"
    rb"|^(?:ptxas|nvlink|nvcc|fatbinary)(?: [^\s,]{1,300}, line \d{1,9};)? (?:error|fatal) {0,9}: \S"
    rb"|^\S{1,300}: line \d{1,9}: (?:\./\S{1,300}|\S{0,300}/bin/\S{1,100}|\S{1,300}\.(?:sh|py))"
    rb": No such file or directory\s{0,9}$"
    rb"|^(?:/usr/bin/)?env: \W{0,4}[\w./-]{1,200}\W{0,4}: No such file or directory"
    # Go's exec, plain or through a container's runtime; perl without a module.
    rb"|^(?:(?:OCI runtime|crun|runc|[Ee]rror)\b[^\r\n]{0,400}: )?exec: \\?\"[^\"\r\n]{1,300}\": "
    rb"executable file not found in \$PATH"
    rb"|^Can't locate \S{1,300}\.pm in @INC "
    rb"|^\S{1,300}: \S{1,300}: version `\w{1,20}_[\d.]{1,20}' not found \(required by "
    rb"|^\S{1,300}: (?:un(?:recognized|known)|invalid) option [-' ]"
    rb"|^srun: error: (?:Couldn't find the specified plugin name for mpi/|cannot find mpi plugin for )"
    # conda, Lmod and Environment Modules.
    rb"|^(?:EnvironmentNameNotFound|EnvironmentLocationNotFound|CommandNotFoundError): |^Lmod has detected the following error: "
    rb"|^(?:ModuleCmd_\w{1,20}\.c\(\d{1,6}\):)?ERROR:(?:\d{1,6}:)? Unable to locate a modulefile for "
    rb"|^docker: Error response from daemon: |^FATAL:\s{1,4}(?:container creation failed|[Uu]nable to |[Cc]ould not |[Ww]hile )"
)


def crash(line: Line) -> Record | None:
    """Parse a crash at the beginning of a line, or behind a label that only its shape gives away."""
    if _TERMINATE.search(line.text) is not None:
        # The exception's own words are in the next line, or said already.
        return fault(line, "killed", "cascade", "critical", signal=6)
    begins = (line.body, *margins.boundaries(line.text, line.body))
    return next((record for begin in begins if (record := _crash_at(line, begin)) is not None), None)


def _crash_at(line: Line, begin: int) -> Record | None:
    body = line.text[begin:]
    if _WHAT.match(body) is not None:
        return fault(line, "traceback", "root", "critical", begin)
    if _PANIC.match(body) is not None:
        return fault(line, "traceback", "root", "critical", begin, exception="panic")
    if _CHECK.match(body) is not None or _HEAP.match(body) is not None:
        return fault(line, "killed", "root", "critical", begin, signal=6)
    if _ASSERTION.match(body) is not None:
        return fault(line, "killed", "root", "critical", begin, signal=6)
    if (match := _HANDLED.search(body)) is not None:
        name = match["absl"].decode() if match["absl"] else "SEGV" if match["torch"] else "ABRT"
        # A program that aborts itself has said why.
        cause = "cascade" if name == "ABRT" else "root"
        return fault(line, "killed", cause, "critical", begin, signal=int(signal.Signals["SIG" + name]))
    if (match := _SIGNAL.search(body)) is not None:
        return fault(line, "killed", "unknown", "critical", begin, signal=_SIGNALS[match["name"]])
    if (match := _JULIA.match(body)) is not None:
        number = int(match["number"])
        asked = number in (signal.SIGINT, signal.SIGTERM)
        return fault(line, "killed", "cascade" if asked else "root", "critical", begin, signal=number)
    if _FATAL.match(body) is not None:
        return fault(line, "killed", "root", "critical", begin, signal=6)
    if _HUNG.match(body) is not None:
        return fault(line, "unknown", "unknown", "critical", begin)
    if _INSTALLATION.match(body) is not None or _FLAGS.match(body) is not None:
        return fault(line, "configuration", "unknown", "critical", begin)
    return None
