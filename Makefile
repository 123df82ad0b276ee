# Each target does all its own set-up in .venv, and is quick the second time.
#   make demo    train a real model on real data in two processes
#   make test    the tests that a change is likely to break
#   make test-all  all of them
#   make check   lint, types, and that generated documents are up to date
#   make bench   measure the budgets of docs/budgets.md
#   make gpu     measure the training scripts on this machine's GPU, with GPU_PYTHON's PyTorch
#   make docs    write the generated documents
#   make site    build the documents as a site, in build/site

# The first interpreter that really starts and is new enough; an inactive pyenv shim is not.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 10))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do "$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && command -v "$$p" && break; done)
GPU_PYTHON ?= python3
HISTORIES ?= --count 100000
FUZZ   ?= --seed 1 --cases 20000
VENV   := .venv
BIN    := $(VENV)/bin
# Tests that start real training or a Slurm cluster, build wheels or execute notebooks: two files at a time, because each uses many cores.
HEAVY  := torch or mpi or wheel or notebook or awscli or slurm
# Many tests wait for a disk or for each other's processes: twice as many at a time as there are cores.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$(( cores < 4 ? cores * 2 : 8 )))
# Packages are compiled afterwards, on all cores; a package may hold files of other Pythons, which do not compile.
PIP    := $(BIN)/python -m pip install -q --disable-pip-version-check --no-compile
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

.PHONY: gpu demo test test-all test-rest test-core test-parity test-pythons test-scripts test-torch fuzz histories environments check bench docs site clean

demo: $(VENV)/.demo
	$(BIN)/cloudtrain submit training_scripts/digits_ddp/job.yaml --processes-per-instance 2
	$(BIN)/cloudtrain ps

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "smoke or not ($(HEAVY) or slow or parity)"

test-all: test test-rest

# What `test` leaves out, but for what needs an environment of its own. The last test takes a node from the cluster, so
# it runs alone.
test-rest: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --durations 12 -m "slow and not ($(HEAVY) or parity or smoke)"
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 25 -m "($(HEAVY)) and not (parity or smoke)"
	CLOUDTRAIN_TEST_ELASTIC=1 $(BIN)/python -m pytest tests/targets/slurm/test_training.py -k elastic

# Without PyTorch, real processes and kills.
test-core: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not ($(HEAVY) or parity or lifecycle)"

# Against the real SDKs of SageMaker and Azure ML, each in its own environment, because they cannot live together.
test-parity: $(VENV)/.dev
	$(BIN)/python tools/test_parity.py

test-pythons: $(VENV)/.dev
	$(BIN)/python tools/test_pythons.py -n $(WORKERS)

# The training scripts that need DeepSpeed or TensorFlow, each with its own environment, because these are large.
test-scripts: $(VENV)/.dev
	$(BIN)/python tools/test_scripts.py

# The training scripts, small, on other versions of PyTorch, each with its own environment.
test-torch: $(VENV)/.dev
	$(BIN)/python tools/test_torch.py

# 20,000 job and settings files that are changed at random, through the commands that read them.
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(FUZZ)

# 100,000 random histories of submissions against a model of what a user may be told.
histories: $(VENV)/.dev
	$(BIN)/python -m tests.lifecycle.submission.histories $(HISTORIES)

# What test-parity, test-scripts and test-torch need; CI makes it while tests wait.
environments: $(VENV)/.dev
	$(BIN)/python tools/test_parity.py --install
	$(BIN)/python tools/test_scripts.py --install
	$(BIN)/python tools/test_torch.py --install

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/house.py

# On a machine with a GPU, with the PyTorch that is there; under 9 minutes. Nothing is installed or downloaded.
gpu:
	$(GPU_PYTHON) bench/gpu.py

bench: $(VENV)/.dev
	$(BIN)/python bench/run.py
	$(BIN)/python bench/parallelism.py

docs: $(VENV)/.dev
	$(BIN)/python tools/docs.py

# Any warning is an error: a link or an anchor that leads nowhere, a page that no menu has. Notebooks have the outputs of
# their last execution: python -m pytest -m notebook.
site: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The shell line stops with a sentence where the interpreter is missing or too old.
$(VENV)/bin/python:
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "Python 3.10 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

# PyTorch first and by its exact pin; whatever depends on it comes after (see constraints.txt).
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
	$(PIP) -r constraints.txt
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.torch
	$(PIP) -c constraints.txt -e '.[torch]'
	$(COMPILE)
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/bin/python
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.torch
	$(PIP) -c constraints.txt -e '.[torch,dev]'
	$(COMPILE)
	@touch $@ $(VENV)/.demo
