"""Rehearsal of a preemption on this machine. It tests whether the training survives a spot interruption before you pay
for one.

whole         the job runs once without interruption; a run that has already succeeded can take this role
interrupted   the same job gets SIGTERM at a chosen step, as in a spot interruption, and SIGKILL after the grace period
resumed       the same job runs again, with only the checkpoint folder of the interrupted run

curves        derive the verdict from the reported losses (pure functions)
runs          make the three runs from one launch specification, so that only names and locations differ
rehearse      the sequence of the rehearsal
"""
