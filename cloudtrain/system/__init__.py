"""Access to the operating system: clocks, locks, private files, and checks of who may write a file."""
