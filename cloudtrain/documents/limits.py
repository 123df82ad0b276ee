"""How much of what a person writes is read. Beyond these limits a file is a mistake, and reading on would take minutes
or all memory."""

from __future__ import annotations

MAX_BYTES = 4 * 2**20
"""Of a file; the largest that make sense are requirements files with hashes, of some hundred kilobytes."""

MAX_DEPTH = 100
"""Levels of nesting; a job has about five."""

MAX_VALUES = 50_000
"""Values of a document, aliases counted each time; a job has some tens, and a file of nested aliases has billions."""

MAX_FILES = 100_000
"""Of a source folder, with those that are ignored one by one; Azure ML itself takes fewer. `source_dir: /` has more."""

MAX_DIGITS = 3500
"""Of a whole number. Python itself reads and writes none of more than 4300 decimal digits; 3500 of base 16 are 4215."""
