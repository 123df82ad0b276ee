"""The ground that all rooms stand on: files, processes, staging, the clock."""
