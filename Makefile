# Each target does all its own set-up in .venv, and is quick the second time.
#   make demo    train a real model on real data in two processes
#   make test    the tests that a change is likely to break
#   make test-all  all of them
#   make check   lint, types, and that generated documents are up to date
#   make bench   measure the budgets of docs/development/budgets.md
#   make gpu     measure the training scripts on this machine's GPU, with GPU_PYTHON's PyTorch
#   make docs    write the generated documents
#   make release  build the files of a release in dist/, and check them
#   make site    build the documents as a site, in build/site
#   make notebooks  execute the notebooks, and keep them with their outputs

# The first interpreter that really starts and is new enough; an inactive pyenv shim is not.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 10))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.10 python3; do "$$p" -c '$(NEW_ENOUGH)' 2>/dev/null && command -v "$$p" && break; done)
GPU_PYTHON ?= python3
# Chooses the examples, histories and cases of what is random; another one with each commit.
SEED   ?= $(shell echo $$((0x$$(git rev-parse HEAD 2>/dev/null | cut -c1-7 | grep . || echo 1))))
HISTORIES ?= --count 100000 --seed $(SEED)
FUZZ   ?= --seed $(SEED) --cases 20000
VENV   := .venv
BIN    := $(VENV)/bin
# Tests that start real training or a Slurm cluster, build wheels or execute notebooks: two files at a time, because each uses many cores.
HEAVY  := torch or mpi or wheel or notebook or awscli or slurm or browser
# Many tests wait for a disk or for each other's processes: twice as many at a time as there are cores.
WORKERS := $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$(( cores < 4 ? cores * 2 : 8 )))
# All property tests and random choices with this commit's seed, which the line that make prints has.
MOVING := --hypothesis-seed $(SEED)

# The tests start thousands of programs, which would each compile what they import.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: gpu notebooks demo test test-all test-rest test-core test-part test-parity test-newest test-cells test-scripts test-torch fuzz histories seed versions check bench hangs docs release site clean

demo: $(VENV)/.demo
	$(BIN)/cloudtrain submit training_scripts/digits_ddp/job.yaml --processes-per-instance 2
	$(BIN)/cloudtrain ps

# Always the same tests with the same examples. `worksteal`: a worker that has no tests left takes some of another one's.
test: $(VENV)/.dev
	@began=$$(date +%s); \
	echo "$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'smoke or not ($(HEAVY) or slow or parity)'"; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "smoke or not ($(HEAVY) or slow or parity)"; \
	code=$$?; echo "make test: $$(( $$(date +%s) - began )) s"; exit $$code

test-all: test test-rest test-parity test-newest test-cells test-scripts test-torch fuzz histories site

# What `test` leaves out, but for what needs an environment of its own. The last test takes a node from the cluster, so
# it runs alone.
test-rest: export CLOUDTRAIN_TEST_EXAMPLES := full
test-rest: export CLOUDTRAIN_TEST_KILLS := 200
test-rest: export CLOUDTRAIN_TEST_METRIC_KILLS := 50
test-rest: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) --durations 12 $(MOVING) -m "(slow or hypothesis) and not ($(HEAVY) or parity or smoke)"
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 25 $(MOVING) -m "($(HEAVY)) and not (parity or smoke)"
	CLOUDTRAIN_TEST_ELASTIC=1 $(BIN)/python -m pytest tests/targets/slurm/test_training.py -k elastic

# A part of the same for CI: every third slow one, one in thirty of what trains, and other ones with each commit.
test-part: export CLOUDTRAIN_TEST_EXAMPLES := 20
test-part: export CLOUDTRAIN_TEST_KILLS := 20
test-part: export CLOUDTRAIN_TEST_METRIC_KILLS := 4
test-part: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --durations 12 $(MOVING) --first --share 3 --share-seed $(SEED) -m "(slow or hypothesis) and not ($(HEAVY) or parity or smoke)"
	$(BIN)/python -m pytest -n 3 tests/lifecycle/submission/test_kill_sweep.py
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 12 $(MOVING) --first --share 3 --share-seed $(SEED) -m "(mpi or wheel or awscli or slurm or notebook) and not (browser or torch or parity or smoke or slow)"
	$(BIN)/python -m pytest --first -m "browser and not slow" tests/page/test_browser.py
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 12 $(MOVING) --share 30 --share-seed $(SEED) -m "torch and not (slurm or notebook or parity or smoke or slow)"

# Without PyTorch, real processes and kills.
test-core: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not ($(HEAVY) or parity or lifecycle)"

# Against the real SDKs of SageMaker and Azure ML, each in its own environment, because they cannot live together.
test-parity: $(VENV)/.dev
	$(BIN)/python tools/run/parity.py $(PARITY)

# The SDKs and PyTorch as the registry offers them today, beyond the versions that the project pins. A failure says what
# the next raise of a pin will ask for.
test-newest: $(VENV)/.dev
	$(BIN)/python tools/run/parity.py --newest
	$(BIN)/python tools/run/torch_versions.py newest

# On other Pythons, on the oldest and the newest packages, without what only Linux has, and in a closed folder with a
# long name: CELLS="3.14 mac" runs these two.
test-cells: $(VENV)/.dev
	$(BIN)/python tools/run/cells.py -n $(WORKERS) $(CELLS)

# The exact versions that the project pins, beside the newest.
versions: $(VENV)/.dev
	$(BIN)/python tools/versions.py

# The training scripts that need DeepSpeed, TensorFlow or TRL, each with its own environment, because these are large.
test-scripts: $(VENV)/.dev
	$(BIN)/python tools/run/training_scripts.py

# The training scripts, small, on other versions of PyTorch, each with its own environment.
test-torch: $(VENV)/.dev
	$(BIN)/python tools/run/torch_versions.py $(TORCH)

# 20,000 job and settings files that are changed at random, through the commands that read them.
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz $(FUZZ)

# 100,000 random histories of submissions against a model of what a user may be told.
histories: $(VENV)/.dev
	$(BIN)/python -m tests.lifecycle.submission.histories $(HISTORIES)
	$(BIN)/python -m tests.lifecycle.capacity.histories --count 1000 --seed $(SEED)

seed:
	@echo $(SEED)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typing
	$(BIN)/python tools/pyright.py
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/house.py

# On a machine with a GPU, with the PyTorch that is there; under 9 minutes. Nothing is installed or downloaded.
gpu:
	$(GPU_PYTHON) bench/gpu.py

bench: $(VENV)/.dev
	$(BIN)/python bench/run.py
	$(BIN)/python bench/parallelism.py

# Ten kinds of hang under every launcher, and healthy runs without an alarm: 40 minutes. HANGS="--share 7": two hangs.
hangs: $(VENV)/.dev
	$(BIN)/python bench/hangs/run.py $(HANGS)
	$(if $(HANGS),,$(BIN)/python bench/hangs/healthy.py)

docs: $(VENV)/.dev
	$(BIN)/python tools/docs.py

# The files of a release in dist/, from the commit that is checked out; see docs/development/releasing.md.
release: $(VENV)/.dev
	$(BIN)/python tools/release.py build
	$(BIN)/python tools/release.py verify

# After a change of a cell: NOTEBOOKS="01 04" executes these two. The fourth measures, and wants an idle machine.
notebooks: $(VENV)/.dev
	$(BIN)/python tools/notebooks.py $(NOTEBOOKS)

# Any warning is an error: a link or an anchor that leads nowhere, a page that no menu has; and so is a block that is cut
# off, if Chromium is there to see it.
site: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python tools/site/width.py build/site
	@echo "build/site/index.html"

clean:
	rm -rf $(VENV) .venv-* build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# tools/environments.py installs once per machine, in ~/.cache/cloudtrain-environments; .venv gets links to its files.
$(VENV)/.demo: pyproject.toml constraints.txt
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "Python 3.10 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON)" tools/environments.py demo
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	@"$(PYTHON)" -c '$(NEW_ENOUGH)' 2>/dev/null || { echo "Python 3.10 or newer is needed: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	"$(PYTHON)" tools/environments.py dev
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: pyproject.toml
	"$(PYTHON)" tools/environments.py docs
	@touch $@
