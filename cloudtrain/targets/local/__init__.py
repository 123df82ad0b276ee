"""The local target. A detached supervisor owns the processes of a run, so the run outlives the process that submitted
it.

    target.py       the target class, which uses these modules
    settings.py     the table `[local]`
    compile/        compiles a job to the launch specification: the exact list of processes
    rules/          the rules LO..., which check a job before it starts
    service/        starts, watches and ends runs

This module imports nothing, because the supervisor has to start in milliseconds.
"""
