"""Secrets that must not be in a bundle or a job: found by the name of a file, and by its content.

suspects.py     finds the parts of a text to search: cheap enough for thousands of files
rules.py        the rules: gitleaks' rules as data, and cloudtrain's own; loaded when the first suspect is found
search.py       finds the rule and position of each secret, without the value
names.py        finds files and folders whose names show that they hold credentials
"""
