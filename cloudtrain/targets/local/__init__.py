"""This machine. A detached supervisor owns the processes of a run, so the run outlives whoever submitted it.

    target.py       what the target is, and the way to all else
    settings.py     the table `[local]`
    compile/        from a job to the launch specification: the exact list of processes
    rules/          what is wrong with a job before it starts (LO)
    service/        the life of a run

Nothing is imported here, because the supervisor has to start in milliseconds.
"""
