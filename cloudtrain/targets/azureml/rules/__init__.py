"""Rules about jobs on Azure ML (AZ)."""
