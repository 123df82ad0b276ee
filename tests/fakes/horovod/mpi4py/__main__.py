"""A stand-in for `python -m mpi4py train.py`, with which SageMaker's toolkit starts every rank: it runs the script."""

import runpy
import sys

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
