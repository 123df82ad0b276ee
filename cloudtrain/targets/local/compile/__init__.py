"""Compile a job to the processes that the supervisor starts."""
