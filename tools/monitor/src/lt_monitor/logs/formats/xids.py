"""NVIDIA's catalogue of Xids by immediate action: docs.nvidia.com/deploy/xid-errors, Ampere and newer, of October 2025.

NVLink 5 (144 to 150) uses one number for fatal and non-fatal events; the line distinguishes them. Xid 154 names its action
itself.
"""

REBOOT = frozenset({79, 151, 167, 168})
RESET = frozenset({46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 169, 171, 172})
# Auxiliary power is missing: somebody has to open the machine.
ISOLATE = frozenset({54})
# The program ends and may start again on the same GPU; the driver has set the damaged memory aside.
CONTAINED = frozenset({94})
# The program ends, and may be at fault itself: engine exceptions, page faults, corrupted push buffers.
_COPY_ENGINES = frozenset({39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)})
_VIDEO_ENGINES = frozenset({60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139})
OF_PROGRAMS = frozenset({8, 11, 13, 25, 31, 32, 43, 45, 69, 80}) | _COPY_ENGINES | _VIDEO_ENGINES
NVLINK5 = range(144, 151)
RECOVERY_ACTION_CHANGED = 154

# Those that end a process though the GPU needs nothing.
ENDING = OF_PROGRAMS | CONTAINED


def action(number: int, text: bytes) -> str:
    """What to do about Xid `number`, whose line is `text`: isolate, reboot, reset, restart or monitor."""
    if number in NVLINK5:
        return "monitor" if b"Nonfatal" in text else "reset"
    if number == RECOVERY_ACTION_CHANGED:
        return _changed_action(text)
    for name, numbers in (("isolate", ISOLATE), ("reboot", REBOOT), ("reset", RESET), ("restart", CONTAINED)):
        if number in numbers:
            return name
    return "monitor"


def _changed_action(text: bytes) -> str:
    """The action in parentheses at the end of Xid 154: `(Node Reboot Required)`, `(GPU Reset Required)`, `(Drain P2P)`."""
    words = text.rstrip().removesuffix(b")").rpartition(b"(")[2].lower()
    if b"reboot" in words:
        return "reboot"
    return "reset" if b"reset" in words or b"drain" in words else "monitor"
