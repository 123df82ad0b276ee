"""The run store: all submitted jobs, the stage of each submission, and the last known status of each run."""

FILE_NAME = "runs.db"
"""The file of the store in the state folder."""

KEPT = (FILE_NAME, "bundles", "chains", "environments", "queue", "runs", "submitting", "sweeps")
"""The names of everything that cloudtrain keeps in the state folder."""
