"""The job model and job files."""
