"""Rules that several targets share. Each target registers them under its own code:
`rule("FO301", Level.ERROR)(more_ranks_than_gpus)`.

The rules check the machines and the time limit that the target's `RequestView` reads from the request. If the
documentation of a rule must state facts about one service, that target defines its own rule with its own docstring,
which calls the shared rule.
"""
