"""Access to the operating system: clocks, locks, private files, and trust in files."""
