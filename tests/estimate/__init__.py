"""Estimates of memory, time and money."""
