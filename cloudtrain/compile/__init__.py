"""Job, target and context in, plan out. Pure: the same arguments give the same bytes."""
