"""Pure functions that compute the arguments and environment of each process of a run from a request."""
