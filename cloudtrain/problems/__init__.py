"""Errors in a job: converts pydantic's errors to problems with a position and a hint.

    collect.py      converts a validation error and the results of a model's own rules to problems
    explain.py      the message and hint for each type of error
    schema_node.py  the fields and values allowed at each path
    forms.py        hints in the syntax of a TOML or JSON file
    other_tools.py  names that people bring from other tools
    names.py        the rules for names in a job
    source.py       the origin of a value, and its original spelling

This module imports nothing, because a correct job needs only a few of these modules.
"""
