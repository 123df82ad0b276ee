"""The local target. A detached supervisor owns the processes of a run, so the run outlives the process that submitted
it.

    target.py       the target, and its parts put together
    settings.py     the table `[local]`
    compile/        from a job to the launch specification: the exact list of processes
    rules/          findings about a job before it starts (LO)
    service/        the life of a run

This module imports nothing, because the supervisor has to start in milliseconds.
"""
