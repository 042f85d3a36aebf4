# make serve: read the guide. make quick: check an edit in minutes. make test: all that
# a CPU can prove. They work from a bare machine.
PYTHON ?= python3
BIN := .venv/bin
# Tests start other makes, which must not wait for this one's free jobs.
PYTEST := MAKEFLAGS= "$(BIN)/python" -m pytest
# On several cores, four of them at most: each process needs about 1 GB.
PARALLEL := -n auto --maxprocesses 4 --dist worksteal
# Shapes in signatures are checked while tests run.
SHAPES := --jaxtyping-packages=systems.model.transformer,beartype.beartype
export NO_MKDOCS_2_WARNING = 1
# Where Python may not keep what it compiled, each of the hundreds of processes that the
# tests start would compile all anew. With a safe path, it would import another clone's
# code, if that is installed.
unexport PYTHONDONTWRITEBYTECODE PYTHONSAFEPATH
# Where `make serve` answers.
PORT ?= 8000

# The newest that torch 2.11, 2.12 or 2.13, 2.14, and 2.15 bring with them.
TRITONS ?= 3.6.0 3.7.1 3.8.0 3.9.0

.PHONY: serve build lint check quick fast-tests test versions exercises browser slurm
.PHONY: submission clean

# Programs run as modules: their scripts in .venv/bin name the folder where they were
# installed, and fail once the clone is moved.
serve: .venv/docs
	@"$(BIN)/python" -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' \
		2>/dev/null || { echo "port $(PORT) is taken or can't be used:" \
		"make serve PORT=8001" >&2; exit 2; }
	"$(BIN)/python" -m mkdocs serve --livereload --dev-addr 127.0.0.1:$(PORT)

build: .venv/docs
	"$(BIN)/python" -m mkdocs build --strict
	"$(BIN)/python" tools/checks/built_site.py

lint: .venv/all
	"$(BIN)/python" -m ruff check .
	"$(BIN)/python" -m ruff format --check .
	"$(BIN)/python" -m basedpyright
	"$(BIN)/python" -m check_jsonschema --builtin-schema vendor.github-workflows \
		.github/workflows/*.yml
	"$(BIN)/zizmor" --offline --quiet .github/workflows

check: .venv/all
	"$(BIN)/python" tools/regen_tables.py --check

# One case of each test that takes no seconds, of every folder, beside the linters.
quick: .venv/all
	$(MAKE) --jobs 2 --output-sync=line --no-print-directory lint fast-tests

fast-tests: .venv/all
	$(PYTEST) --quick $(PARALLEL)

# Lint, check and build run side by side, because each keeps only one core busy.
test: .venv/all
	$(MAKE) --jobs --output-sync=target --no-print-directory lint check build
	$(PYTEST) -m "not browser and not alone and not slurm and not versions" \
		$(PARALLEL) $(SHAPES)
	$(PYTEST) -m alone $(SHAPES)

# Every kernel in the interpreter, and compiled ahead, and what reads Triton's own clock
# and binaries, with each Triton that a torch of our range brings; downloads those that
# are not there. `make versions TRITONS=3.9.0` tries one. The interpreter of 3.6 takes
# no number from an array of NumPy 2.4.
versions: .venv/all
	for triton in $(TRITONS); do \
		case $$triton in 3.6.*) older="numpy<2.4" ;; *) older= ;; esac; \
		"$(BIN)/uv" pip install --quiet --no-deps --target build/triton-$$triton \
			triton==$$triton $$older && \
		PYTHONPATH=build/triton-$$triton $(PYTEST) $(PARALLEL) \
			tests/attention tests/test_weighted_sum.py \
			tests/benchmarking/test_gpu_time.py || exit; \
	done

# Kernels to fill in, on a CPU; `make exercises ONLY=online` runs one.
exercises: .venv/all
	$(PYTEST) docs/exercises $(if $(ONLY),-k "$(ONLY)")

# Needs Chromium (Debian: apt-get install chromium).
browser: .venv/all
	$(PYTEST) -n 2 --maxschedchunk 1 -m browser

# Starts a Slurm of the tests' own; needs root (Debian: apt-get install slurm-wlm munge).
slurm: .venv/all
	$(PYTEST) -m slurm tests/tools/test_slurm.py

# code.zip and writeup.pdf; `make submission GPU=nvidia-h200`, the primary GPU, prints no
# reported numbers; RESULTS=docs/results/quick: of a reduced grid. Needs Chromium.
submission: .venv/all
	"$(BIN)/python" tools/submission.py $(if $(GPU),--gpu "$(GPU)") \
		$(if $(RESULTS),--results "$(RESULTS)")

# uv installs in seconds what pip needs a minute for. torch alone comes by pip, whose
# settings choose its build.
.venv/uv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 5) and \
		"Python 3.11.5 or later is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	"$(BIN)/python" -m pip install --quiet --disable-pip-version-check uv
	touch $@

.venv/docs: .venv/uv pyproject.toml
	"$(BIN)/uv" pip install --quiet --python "$(BIN)/python" --editable '.[docs]'
	touch $@

.venv/all: .venv/docs
	@echo "torch with its CUDA libraries makes .venv 6 to 7 GB; its CPU build, far less"
	"$(BIN)/python" -m pip install --disable-pip-version-check --editable '.[torch]'
	"$(BIN)/uv" pip install --quiet --python "$(BIN)/python" --editable '.[docs,dev]'
	touch $@

clean:
	rm -rf .venv build site/* *.egg-info
