"""Secrets that must not be in a bundle or a job: found by the name of a file, and by its content.

suspects.py     finds the parts of a text that can contain secrets, and takes little time for ordinary files
rules.py        the rules: gitleaks' rules as data, and cloudtrain's own; loaded when the first suspect is found
search.py       finds secrets with the rules; reports the rule and position of each, not the value
names.py        finds files and folders whose names show that they hold credentials
"""
