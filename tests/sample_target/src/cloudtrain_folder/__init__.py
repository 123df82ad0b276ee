"""A target of cloudtrain: jobs are plain processes of this machine, recorded in a folder that others can read."""
