# make serve: read the guide. make test: everything that a CPU can prove. Both work from a bare machine.
PYTHON ?= python3
BIN := .venv/bin
# Shapes in signatures are checked while tests run.
SHAPES := --jaxtyping-packages=systems.model,beartype.beartype
export NO_MKDOCS_2_WARNING = 1

.PHONY: serve build test check browser slurm submission clean

serve: .venv/docs
	$(BIN)/mkdocs serve

build: .venv/docs
	$(BIN)/mkdocs build --strict
	$(BIN)/python tools/check_site.py

test: .venv/all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal -m "not browser and not alone and not slurm" $(SHAPES)
	$(BIN)/pytest -m alone $(SHAPES)
	$(BIN)/python tools/regen_tables.py --check
	$(MAKE) build

# Needs Chromium (Debian: apt-get install chromium).
browser: .venv/all
	$(BIN)/pytest -n 2 --maxschedchunk 1 -m browser

# Starts a Slurm of the tests' own; needs root (Debian: apt-get install slurm-wlm munge).
slurm: .venv/all
	$(BIN)/pytest -m slurm

# code.zip and writeup.pdf; `make submission GPU=nvidia-h200` prints the tabs of one GPU alone. Needs Chromium.
submission: .venv/all
	$(BIN)/python tools/submission.py $(if $(GPU),--gpu $(GPU))

# uv installs in seconds what pip needs a minute for. torch alone comes by pip, whose settings choose its build.
.venv/uv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.12 ...")'
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
