"""Exports, shared by all targets: turn a request back into calls of a service's own SDK.

fields       read a request so that no field is silently skipped
calls        the calls, as data; `build` makes the objects
python_code  the same calls as code to read and run
"""
