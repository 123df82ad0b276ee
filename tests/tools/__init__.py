"""The programs in tools/ that make what the tests run on."""
