"""The words: job, distribution, resources, data, plan, states. No name of a target stands here."""
