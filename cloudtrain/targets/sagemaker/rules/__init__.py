"""Rules about jobs on SageMaker (SM)."""
