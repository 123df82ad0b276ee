"""Rules about runs on this machine: `LO101`."""
