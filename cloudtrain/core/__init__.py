"""The vocabulary of cloudtrain: job, distribution, resources, data, plan and states. This package names no target."""
