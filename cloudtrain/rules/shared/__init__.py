"""Rules that several targets share. Each target registers them under its own code:
`rule("FO301", Level.ERROR)(more_ranks_than_gpus)`.

The rules check what the target's `RequestView` reads from its request: the machines and their time limit. If there are
facts specific to a service, a rule of the target has them in its docstring and calls the shared rule.
"""
