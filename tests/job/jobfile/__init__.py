"""Job files."""
