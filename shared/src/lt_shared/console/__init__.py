"""What every lt command does alike: exit codes, errors, help, progress and signals.

stdout carries data, stderr is for people. A tool ends through `run`, which turns every exception into one line on stderr and
an exit code that an sbatch script can act on (requeue on 75, stop on 78).
"""

from lt_shared.console.commands import Command as Command
from lt_shared.console.commands import FiniteRange as FiniteRange
from lt_shared.console.commands import Group as Group
from lt_shared.console.commands import names_and_files as names_and_files
from lt_shared.console.commands import option_sections as option_sections
from lt_shared.console.commands import section as section
from lt_shared.console.commands import version_option as version_option
from lt_shared.console.default_command import DefaultCommand as DefaultCommand
from lt_shared.console.default_command import Operands as Operands
from lt_shared.console.errors import BadConfig as BadConfig
from lt_shared.console.errors import BadData as BadData
from lt_shared.console.errors import CannotCreate as CannotCreate
from lt_shared.console.errors import ExitCode as ExitCode
from lt_shared.console.errors import IoFailure as IoFailure
from lt_shared.console.errors import NoInput as NoInput
from lt_shared.console.errors import Terminated as Terminated
from lt_shared.console.errors import ToolError as ToolError
from lt_shared.console.errors import TryAgain as TryAgain
from lt_shared.console.errors import Unavailable as Unavailable
from lt_shared.console.errors import UsageError as UsageError
from lt_shared.console.output import Verbosity as Verbosity
from lt_shared.console.output import counted as counted
from lt_shared.console.output import detail as detail
from lt_shared.console.output import note as note
from lt_shared.console.output import print_json as print_json
from lt_shared.console.output import print_text as print_text
from lt_shared.console.output import verbosity as verbosity
from lt_shared.console.output import visible as visible
from lt_shared.console.output import visible_json as visible_json
from lt_shared.console.output import warn as warn
from lt_shared.console.program import exit_code_of as exit_code_of
from lt_shared.console.program import run as run
from lt_shared.console.progress import Progress as Progress
from lt_shared.console.progress import Stopwatch as Stopwatch
