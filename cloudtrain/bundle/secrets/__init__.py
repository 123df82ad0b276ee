"""What must not be in a bundle or a job: by the name of a file, and by its content.

suspects.py     the places of a text that are worth a look: cheap, for thousands of files
rules.py        what secrets look like: gitleaks' rules as data, and our own; loaded with the first suspect
search.py       which rule finds a secret, and where; never the value
names.py        files and folders that hold credentials by their name
"""
