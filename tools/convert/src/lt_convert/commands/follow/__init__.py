"""Follow: every complete checkpoint of a run is converted once, in order, while the run trains, and a command is run on each.

`following` makes passes over the run; what one has done is in the `state` that the next one reads. `shell` runs the command, and
`retention` deletes what is not kept. The command line calls this room, from cron or as a process that stays.
"""
