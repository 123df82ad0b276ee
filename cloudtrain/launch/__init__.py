"""What the machines really execute: pure functions from a request to argv and environment, process by process."""
