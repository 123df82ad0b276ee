"""Preemption, rehearsed on this machine: does the training survive spot capacity, before anybody pays for it?

whole         the job runs once without interruption, or a run that has succeeded stands for it
interrupted   the same again; SIGTERM at a chosen step, as spot capacity sends it; SIGKILL after the grace period
resumed       the same again, with what the interrupted run left in its checkpoint folder and nothing else

curves        pure: from reported losses to a verdict
runs          the three runs, made of one launch specification, so that nothing differs but names and places
rehearse      the order of things
"""
