"""Texts with structure that people write: YAML, TOML and JSON into data, with the place of everything in them.

    limits      how much of such a text is read
    reading     a file on disk, if it is a plain file of a sensible size
    document    data, positions, and what is wrong with a text before anything is validated
    yaml_text, toml_text, json_text, scalars    the readers of the formats

Job files, settings and the user's own instance types are read by these.
"""
