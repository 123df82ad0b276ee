"""Size limits of files that users write. A larger file is a mistake, and reading it would take minutes or fill the
memory."""

from __future__ import annotations

MAX_BYTES = 4 * 2**20
"""The most bytes of a file. The largest useful files are requirements files with hashes, of some hundred kilobytes."""

MAX_DEPTH = 100
"""The most levels of nesting. A job has about five."""

MAX_VALUES = 50_000
"""Values of a document, with aliases counted each time. A job has some tens, and a file of nested aliases has
billions."""

MAX_FILES = 100_000
"""Files of a source folder, including each ignored file. Azure ML allows fewer, and `source_dir: /` has more."""

MAX_DIGITS = 3500
"""Digits of a whole number. Python reads and writes at most 4300 decimal digits; 3500 digits of base 16 are 4215."""
