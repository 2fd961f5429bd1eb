# Everything runs from here. The first target that needs the environment makes it; later ones find it ready.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Without .pyc files torch takes three times as long to import.
unexport PYTHONDONTWRITEBYTECODE

# Each worker takes the tests next to those it had, whose fixtures it has; one that is done takes from the other.
PYTEST := -n auto --dist worksteal

# Run the tests, and lint and types beside them, whose output follows; it fails if any of them does.
define with-checks
checks=$$(mktemp); $(MAKE) --no-print-directory lint types >$$checks 2>&1 & beside=$$!; \
$(1); tests=$$?; wait $$beside; others=$$?; cat $$checks; rm -f $$checks; exit $$((tests > others ? tests : others))
endef

.PHONY: help train tour test test-all fuzz mutants lab bench lint types format clean

help:  ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

train: $(READY)  ## train a GPT on the built-in stories, in about a minute; TEXT=FILE for your own
	@$(BIN)/normscope train $(TEXT)

tour: $(READY)  ## a worked example: the norms, their scopes and the models, checked against PyTorch
	@$(BIN)/python examples/tour.py

test: $(READY)  ## everything that CI runs: lint, types and tests
	@$(call with-checks,$(BIN)/pytest $(PYTEST))

test-all: $(READY)  ## the same with the exhaustive tests, which take longer
	@$(call with-checks,$(BIN)/pytest $(PYTEST) -m '')

mutants: $(READY)  ## break the core in a hundred small ways, and see which the tests notice; N=500 for more
	@$(BIN)/python -m tests.mutation $(if $(N),--count $(N))

fuzz: $(READY)  ## damaged files, wrong arguments and kills, counted into docs/robustness.md; SECONDS=N for longer
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),300) --page docs/robustness.md

lab: $(READY)  ## put the field's claims to the test, in a quarter of an hour, into docs/lab; BUDGET=full takes a night
	@$(BIN)/normscope lab run --all --budget $(or $(BUDGET),quick) --out docs/lab
	@$(BIN)/normscope lab report --markdown --out docs/lab

bench: $(READY)  ## speed against others, into docs/performance.md; NANOGPT=CHECKOUT TEXT=FILE for all of it
	@$(BIN)/python benchmarks/report.py $(if $(NANOGPT),--nanogpt $(NANOGPT)) $(if $(TEXT),--text $(TEXT))

lint: $(READY)  ## style, by ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## types, by mypy
	$(BIN)/mypy

format: $(READY)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment and all caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Made anew when the dependencies change. The stamp comes last, so that an install that was cut short starts over.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normscope needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + "; name another with make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
