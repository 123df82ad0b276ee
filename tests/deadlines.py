"""How long a test waits for what must happen.

A deadline only turns a test that hangs into one that fails. No machine is so busy that it should be reached, and a test
never measures how quick something was.
"""

DEADLINE = 900.0
"""Seconds."""

GRACE = 600
"""Seconds that a run which is to save may take for it."""
