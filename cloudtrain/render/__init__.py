"""Output for users: documents of blocks, shown as text in terminals and as HTML in notebooks."""
