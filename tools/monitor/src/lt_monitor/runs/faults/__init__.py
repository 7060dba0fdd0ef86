"""From the faults in a log to the reason why a run or a job ended, and to the remedy.

`failure_causes` takes the faults since the last step of a run, `tail_cause` those at the end of a job's output. `advice` has the
remedy for each fault.
"""
