"""The run store: what was submitted, how far each submission came, and what is known of each run."""

FILE_NAME = "runs.db"
"""The store in the state folder."""

KEPT = (FILE_NAME, "bundles", "environments", "queue", "runs", "submitting", "sweeps")
"""What cloudtrain keeps in the state folder."""
