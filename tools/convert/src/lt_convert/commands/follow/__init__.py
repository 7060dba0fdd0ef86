"""Follow: every complete checkpoint of a run is converted once, in order, while the run trains, and a command is run on each.

`following` makes passes over the run; each pass records its work in the `state`, which the next pass reads. The command line
calls this room, from cron or as a process that stays.
"""
