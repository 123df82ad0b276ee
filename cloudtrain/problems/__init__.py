"""What is wrong with a job, in its own words: pydantic's errors as problems with a place and a hint.

    collect.py      a validation error, and a model's own rules, into problems, all at once
    explain.py      each kind of error as a message and a hint
    schema_node.py  which fields and values may stand where
    forms.py        hints as a TOML or JSON file has them
    other_tools.py  names that people bring from other tools
    names.py        what names in a job may look like
    source.py       where a value came from, and how it was written

Nothing is imported here: a right job needs little of it.
"""
