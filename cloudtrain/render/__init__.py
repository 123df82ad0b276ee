"""What people read: a small document of blocks, and its two forms, text for terminals and HTML for notebooks."""
