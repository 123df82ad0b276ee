"""Azure Machine Learning.

backend      the class: what a plan needs, which is nothing but this machine
account      the settings, from the target, the SDK's `config.json` and the defaults of `az`
place        the middle of a run's reference: which workspace, with whose credentials
plan         the compiled job, also in the words of the Azure ML SDK and command line

The rest asks Azure, and is imported with the first question: see `service.py`.
"""
