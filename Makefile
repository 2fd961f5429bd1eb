# Everything runs from here. The first target that needs the environment creates it; later ones reuse it.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# Two stamps in one environment: what training needs, and what tests, benchmarks and the lab need on top of it.
CORE := .venv/.core
DEV := .venv/.dev
# The studio's page, built from web/ by Node.js. Only `make studio` and the browser tests need it.
PAGE := src/normscope/studio/static/export.html
NODE_MODULES := web/node_modules/.package-lock.json

# Without .pyc files torch takes three times as long to import.
unexport PYTHONDONTWRITEBYTECODE

# One worker more than cores, as some tests wait for processes. Each takes neighboring tests, which share fixtures; a worker
# that is done takes tests from another.
PYTEST := -n $(shell expr `getconf _NPROCESSORS_ONLN` + 1) --dist worksteal

# Run the tests with lint and types in parallel, and print their output afterwards. Fails if any of them fails.
define with-checks
checks=$$(mktemp); $(MAKE) --no-print-directory lint types >$$checks 2>&1 & beside=$$!; \
$(1); tests=$$?; wait $$beside; others=$$?; cat $$checks; rm -f $$checks; exit $$((tests > others ? tests : others))
endef

.PHONY: help train studio tour page try-page test test-all fuzz mutants lab bench images lint types format clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 16

train: $(CORE)  ## train a GPT on the built-in stories, or on TEXT=FILE
	@$(BIN)/normscope train $(TEXT)

studio: $(CORE) $(PAGE)  ## open the studio, a local web page (needs Node.js 20 or newer to build it)
	@$(PIP) -e '.[studio]'
	@$(BIN)/normscope studio

tour: $(CORE)  ## a tour in Python: norms, scopes and models, checked against PyTorch
	@$(BIN)/python examples/tour.py

test: $(DEV) try-page  ## everything that CI runs: lint, types and tests
	@$(call with-checks,$(BIN)/pytest $(PYTEST))

test-all: $(DEV) try-page  ## the same plus the exhaustive tests
	@$(call with-checks,$(BIN)/pytest $(PYTEST) -m '')

mutants: $(DEV)  ## mutation testing of the core; N=500 for more mutants
	@$(BIN)/python -m tests.mutation $(if $(N),--count $(N))

fuzz: $(DEV)  ## fuzz files, arguments and kills, and write docs/robustness.md; SECONDS=N
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),300) --page docs/robustness.md

lab: $(DEV)  ## run all claims (15 minutes) and write docs/lab; BUDGET=full takes a night
	@$(BIN)/normscope lab run --all --budget $(or $(BUDGET),quick) --out docs/lab
	@$(BIN)/normscope lab report --markdown --out docs/lab

peers: $(DEV)  ## compare with the code of nanoGPT and nanochat; NANOGPT=REPOSITORY NANOCHAT=REPOSITORY
	@$(BIN)/python -O -m tests.peers.karpathy $(NANOGPT) $(NANOCHAT)

bench: $(DEV)  ## benchmarks, into docs/performance.md; NANOGPT=CHECKOUT TEXT=FILE for all of them
	@$(BIN)/python benchmarks/report.py $(if $(NANOGPT),--nanogpt $(NANOGPT)) $(if $(TEXT),--text $(TEXT))

images: $(DEV) $(PAGE)  ## train a default run, and write the images of README.md and docs/studio.md, and docs/demo
	@rm -rf build/images
	@$(BIN)/python examples/training_image.py docs/images/training.svg build/images/stories
	@$(BIN)/normscope export build/images/stories --to html --out docs/demo/stories.html
	@$(BIN)/python -m tests.studio.screenshots build/images

lint: $(DEV)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)  ## mypy
	$(BIN)/mypy

format: $(DEV)  ## fix the style with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the environment, the built page and all caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build web/node_modules src/normscope/studio/static
	find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

# Created again when the dependencies change. The stamp comes last, so that an interrupted install starts over.
$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "normscope needs Python 3.11 or newer, but $(PYTHON) is " + sys.version.split()[0] + "; choose another with make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear .venv
	$(PIP) -e .
	@touch $@

$(DEV): $(CORE)
	$(PIP) -e '.[dev]'
	@touch $@

$(NODE_MODULES): web/package.json web/package-lock.json
	cd web && npm ci --no-audit --no-fund
	@touch $@

$(PAGE): $(NODE_MODULES) web/index.html web/export.html web/vite.config.ts web/tsconfig.json $(shell find web/src src/normscope/messages -name '*.ts*' -o -name '*.css' -o -name '*.json')
	cd web && npm run build
	@touch $@

page: $(PAGE)  ## build the studio's page

try-page:  # without Node.js all other tests still run
	@$(MAKE) --no-print-directory $(PAGE) || echo 'THE PAGE OF THE STUDIO COULD NOT BE BUILT (Node.js 20 or newer is needed): ITS BROWSER TESTS ARE SKIPPED'
