"""What the machine is asked for: clocks, locks, private files, whose files may be obeyed."""
