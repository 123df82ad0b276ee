"""Secrets that must not be in a bundle or a job: found by the name of a file, and by its content.

suspects.py     finds the parts of a text to search: cheap, for thousands of files
rules.py        the forms of secrets: gitleaks' rules as data, and our own; loaded with the first suspect
search.py       the rule and position of each secret, without the value
names.py        files and folders that hold credentials by their name
"""
