"""Output for people: a document made of blocks, shown as text in terminals and as HTML in notebooks."""
