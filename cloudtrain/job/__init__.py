"""The models that all parts of cloudtrain share: job, distribution, resources, data, plan and states. This package
contains no code for a specific target.
"""
