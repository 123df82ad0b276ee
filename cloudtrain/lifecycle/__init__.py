"""From a job to a run: planning, exactly-once submission, the run, and what later runs read from it."""
