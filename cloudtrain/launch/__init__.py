"""The processes that the machines execute: pure functions from a request to arguments and environment of each
process."""
