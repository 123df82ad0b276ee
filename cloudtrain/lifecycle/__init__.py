"""From a job to a run: planning, exactly-once submission, the run itself, and what later runs read of it."""
