"""Rules that several targets have, each under a code of its own: `rule("FO301", Level.ERROR)(more_ranks_than_gpus)`.

They look at what the target's `RequestView` reads from its request: the machines, and how long they may run. Where a
service has facts of its own to tell, a rule of the target has them in its docstring, and calls the one here.
"""
