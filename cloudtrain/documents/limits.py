"""Size limits of files that users write. A larger file is a mistake, and reading it would take minutes or fill the
memory."""

from __future__ import annotations

MAX_BYTES = 4 * 2**20
"""The most bytes of a file. The largest useful files are requirements files with hashes, of some hundred kilobytes."""

MAX_DEPTH = 100
"""The most levels of nesting. A job has about five."""

MAX_VALUES = 50_000
"""The most values of a document, with aliases counted each time. A job has tens of values, a file of nested aliases
billions."""

MAX_FILES = 100_000
"""The most files of a source folder, ignored files included. Azure ML allows fewer, and `source_dir: /` has more."""

MAX_DIGITS = 3500
"""The most digits of an integer. Python reads and writes at most 4300 decimal digits; 3500 of base 16 are 4215."""
