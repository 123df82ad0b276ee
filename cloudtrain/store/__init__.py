"""The run store: what was submitted, how far each submission came, and what is known of each run."""
