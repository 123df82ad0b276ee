"""Rules about runs on this machine, with codes such as `LO101`."""
