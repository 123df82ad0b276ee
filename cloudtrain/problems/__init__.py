"""Mistakes in a job, in the job's terms: pydantic's errors as problems with a position and a hint.

    collect.py      a validation error, and a model's own rules, into problems, all at once
    explain.py      each kind of error as a message and a hint
    schema_node.py  the fields and values allowed at each path
    forms.py        hints in the syntax of a TOML or JSON file
    other_tools.py  names that people bring from other tools
    names.py        the rules for names in a job
    source.py       the origin of a value, and its original spelling

This module imports nothing, because a correct job needs little of the package.
"""
