"""Code that several targets share: compiling, scaling to this machine, following logs, archives and copies, exports."""
