"""Notices before the end: of clouds that take a machine back, of nodes that shut down, and of signals that a program received."""

import re
import signal

from lt_monitor.events.records import Record
from lt_monitor.logs.line_parsers import fault, is_warning, regex
from lt_monitor.logs.lines import Line

_PREEMPTION = regex(
    rb"[Tt]ermination is imminent|[Ss]pot (?:[Ii]nstance )?(?:[Ii]nterruption|[Tt]ermination|[Pp]reemption"
    rb"|[Ee]viction)(?: (?:notice|warning|payload|event))? "
    rb"?(?:received|detected|issued|:|$)|(?:[Rr]eceived|[Gg]ot|[Dd]etected) (?:an? |EC2 |the |AWS |GCP "
    rb"|Azure )*[Ss]pot (?:[Ii]nstance )?"
    rb"(?:[Ii]nterruption|[Tt]ermination|[Pp]reemption|[Ee]viction)|EC2 Spot Instance [Ii]nterruption [Ww]arning|BidEvictedEvent"
    rb"|[Ii]nstance (?:is going to be|will be|is being|was|has been) (?:interrupted|preempted|reclaimed|terminated)"
    rb"|compute\.instances\.preempted"
    rb"|\"?EventType\"?[:=] ?\"?Preempt\b|[Pp]reemption notice(?: received|:)|[Rr]eceived (?:a "
    rb"|the )?[Pp]reemption notice|[Ss]pot instance .{0,40}(?:interruption|termination|preemption) notice"
    rb"|PreemptScheduled|Server\.SpotInstanceTermination"
    rb"|preemption_notifier.{0,80}(?:SIGTERM caught|[Pp]reempt)|imminent node shutdown|NodeShutdown\b|Pod was preempted"
    rb"|(?:VM|TPU|node|[Ww]orker|[Jj]ob|[Cc]luster)(?: \S{1,80})? (?:is|was|has been|is being|got) preempted|\bPREEMPTED\b"
    # TensorFlow's, about workers that were told to end.
    rb"|ShutdownHook: lame workers found"
    rb"|\b(?:TPU|VM)(?: [\w./-]{1,80}){0,2} preempted\b|\bTERMINATE_ON_HOST_MAINTENANCE\b(?! *[=:])"
)
_MAY = regex(rb"\bif |\bwhether |\bwhen |\bin case|\bmay\b|--|#", re.IGNORECASE)
_NAMES = {name.encode(): number for name, number in (("TERM", 15), ("INT", 2), ("HUP", 1), ("USR1", 10), ("USR2", 12))}
_SIGNAL = regex(
    rb"[Rr]eceived (?:Signals\.SIG(?P<elastic>TERM|INT|HUP|USR1|USR2)|(?P<number>1|2|10|12|15)) death signal"
    # TensorBoard is ended by the trainer that has ended.
    rb"|(?<!TensorBoard )(?:[Rr]eceived|[Cc]aught|[Gg]ot)(?: the| a)?(?: signal)?:? (?:SIG|Signals\.SIG)"
    rb"(?P<name>TERM|INT|HUP|USR1|USR2)\b"
    rb"|(?:[Rr]eceived|[Cc]aught|[Gg]ot) signal:? (?P<plain>1|2|10|12|15)\b|SIGTERMException"
    rb"|[Ss]ignal (?P<of>1|2|10|12|15) \(SIG\w{2,6}\) (?:caught|received)"
    rb"|(?P<interrupt>Detected KeyboardInterrupt, )"
    rb"|\*\*\* SIG(?P<glog>TERM|INT|HUP|USR1|USR2) (?:\(@|received (?:at time=|by PID )\d)"
    rb"|crash gathering disabled for SIG(?P<abseil>TERM|INT|HUP|USR1|USR2)\b"
    rb"|^(?:.{0,200}: (?:line )?\d{1,9}:? {1,8}\d{0,12} {0,8})?(?P<shell>Terminated|User defined signal [12]|Hangup)(?:  "
    rb"|\s{0,200}$)"
)
_SHELL = {
    b"Terminated": signal.SIGTERM,
    b"User defined signal 1": signal.SIGUSR1,
    b"User defined signal 2": signal.SIGUSR2,
    b"Hangup": signal.SIGHUP,
}


def preemption(line: Line) -> Record | None:
    """A machine that its cloud is about to take back, which ends the job some steps later."""
    match = _PREEMPTION.search(line.text)
    if match is None or is_warning(line, match.start()) or _MAY.search(line.text, line.body, match.start()) is not None:
        return None
    return fault(line, "preemption", "root", "warning", is_notice=True)


def signalled(line: Line) -> Record | None:
    """Parse a signal that asks a program to end."""
    match = _SIGNAL.search(line.text) or _SIGNAL.search(line.text[line.body :])
    if match is None:
        return None
    if match["interrupt"]:
        number = int(signal.SIGINT)
    elif match["shell"]:
        number = int(_SHELL[match["shell"]])
    else:
        plain = match["number"] or match["plain"] or match["of"]
        number = int(plain) if plain else _NAMES.get(match["elastic"] or match["name"] or match["glog"] or match["abseil"], 15)
    return fault(line, "killed", "cascade", "warning", signal=number)
