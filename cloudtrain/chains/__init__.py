"""Chains: a job that reads from an unfinished run waits on this machine, and is sent when that run has succeeded.

`ChainService` stores the request in a folder and starts the watcher, a detached process. The watcher checks the awaited
runs, and sends the request once they have succeeded. From then on, the run is an ordinary run of its target.
"""
