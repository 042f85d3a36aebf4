# make serve: read the guide. make quick: prove an edit in a minute. make test: all that
# a CPU can prove. They work from a bare machine.
PYTHON ?= python3
BIN := .venv/bin
# On several cores, four of them at most: each process needs about 1 GB.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
# Shapes in signatures are checked while tests run.
SHAPES := --jaxtyping-packages=systems.model.transformer,beartype.beartype
export NO_MKDOCS_2_WARNING = 1

.PHONY: serve build lint quick test browser slurm submission clean

serve: .venv/docs
	$(BIN)/mkdocs serve

build: .venv/docs
	$(BIN)/mkdocs build --strict
	$(BIN)/python tools/checks/built_site.py

lint: .venv/all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

# One case of each test that takes no seconds, of every folder.
quick: lint
	$(BIN)/pytest --quick $(PARALLEL)

test: lint
	$(BIN)/pytest -m "not browser and not alone and not slurm" $(PARALLEL) $(SHAPES)
	$(BIN)/pytest -m alone $(SHAPES)
	$(BIN)/python tools/regen_tables.py --check
	$(MAKE) build

# Needs Chromium (Debian: apt-get install chromium).
browser: .venv/all
	$(BIN)/pytest -n 2 --maxschedchunk 1 -m browser

# Starts a Slurm of the tests' own; needs root (Debian: apt-get install slurm-wlm munge).
slurm: .venv/all
	$(BIN)/pytest -m slurm

# code.zip and writeup.pdf; `make submission GPU=nvidia-h200` prints the tabs of one GPU
# alone. Needs Chromium.
submission: .venv/all
	$(BIN)/python tools/submission.py $(if $(GPU),--gpu $(GPU))

# uv installs in seconds what pip needs a minute for. torch alone comes by pip, whose
# settings choose its build.
.venv/uv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Python 3.11 or later is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	touch $@

.venv/docs: .venv/uv pyproject.toml
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[docs]'
	touch $@

.venv/all: .venv/docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[torch]'
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[docs,dev,slurm]'
	touch $@

clean:
	rm -rf .venv site/* *.egg-info
