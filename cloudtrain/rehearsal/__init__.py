"""Rehearsal of a preemption on this machine: does the training survive spot capacity, before you pay for it?

whole         the job runs once without interruption, or a run that has succeeded replaces it
interrupted   the same job; SIGTERM at a chosen step, as spot capacity sends it; SIGKILL after the grace period
resumed       the same job, with only the checkpoint folder of the interrupted run

curves        from reported losses to a verdict (pure)
runs          the three runs, made from one launch specification, so that only names and locations differ
rehearse      the sequence of the rehearsal
"""
