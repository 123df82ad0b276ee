"""The way from a job to a run: planning, exactly-once submission, the run, and the use of its output by later runs."""
