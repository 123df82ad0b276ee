"""Chains: a job that reads from a run that goes on waits for it here, and is sent when that run has succeeded.

`ChainService` keeps the request in a folder and starts the watcher, a detached process. The watcher looks at the
awaited runs and sends the request once. From then on the run is an ordinary run of its target.
"""
