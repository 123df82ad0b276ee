"""A program that runs a training script as one rank of a job, with tensors that have no memory.

It runs in the user's interpreter, which has torch and may not have cloudtrain, so these files
import only the standard library, torch and each other. No other module of the package imports them.
"""
