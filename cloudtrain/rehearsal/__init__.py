"""Rehearsal of a preemption on this machine. It tests whether the training survives a spot interruption before you pay
for one.

A rehearsal consists of three runs:

whole         the job runs without interruption; a run that has already succeeded can be used instead
interrupted   the same job gets SIGTERM at a chosen step, as in a spot interruption, and SIGKILL after the grace period
resumed       the same job runs again, with only the checkpoint folder of the interrupted run

The modules:

curves        compares the reported losses and returns the verdict (pure functions)
runs          makes the three runs from one launch specification, so that only names and locations differ
rehearse      runs the rehearsal from start to end
"""
