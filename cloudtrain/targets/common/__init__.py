"""Code that several targets share: compile jobs, scale them to this machine, follow logs, copy files, export jobs."""
