"""The rules that hold on every target (CT)."""
