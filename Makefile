# The two commands a newcomer needs are `make serve` and `make test`.
# Everything goes into .venv; PYTHON names the interpreter it is made with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
SOURCES := $(shell git ls-files --cached --others --exclude-standard 'csrc/*.cpp' 'csrc/*.hpp' 'csrc/*.inl')

.PHONY: help install serve test sweep check format bench clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(BIN)/python:
	@echo "make: making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# torch goes first and alone: its exact version decides which build pip takes.
$(VENV)/.installed: pyproject.toml setup.py CMakeLists.txt requirements/common.txt requirements/cpu.txt $(wildcard csrc/*.* csrc/*/*.*) | $(BIN)/python
	@echo "make: [1/2] installing torch (the largest download; minutes on a slow line)"
	@$(BIN)/python -m pip install --quiet torch==2.13.0
	@echo "make: [2/2] installing the other packages and compiling the kernels (a minute or more)"
	@$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.test-extras: requirements/test.txt $(VENV)/.installed
	@echo "make: installing the test extras"
	@$(BIN)/python -m pip install --quiet -r requirements/test.txt
	@touch $@

$(VENV)/.lint-extras: requirements/lint.txt $(VENV)/.installed
	@echo "make: installing the lint extras"
	@$(BIN)/python -m pip install --quiet -r requirements/lint.txt
	@touch $@

install: $(VENV)/.installed ## Install into .venv and build the kernels.

serve: install ## Serve the default model (ARGS="MODEL --port 8000 ..." for others).
	$(BIN)/vllm serve $(ARGS)

test: $(VENV)/.test-extras ## Run the whole test suite (ARGS="tests/v1 -k name" for a part).
	$(BIN)/python -m pytest -q $(ARGS)

sweep: $(VENV)/.test-extras ## Run every model type of Transformers, write docs/models (ARGS="gemma2 --jobs 1").
	$(BIN)/python -m tests.models.transformers.sweep $(ARGS)

check: $(VENV)/.test-extras $(VENV)/.lint-extras ## Format, lint, types, import contract, sizes.
	tools/check

format: $(VENV)/.lint-extras ## Rewrite files in the project's format.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(if $(SOURCES),$(BIN)/clang-format -i $(SOURCES))

clean: ## Remove build results (the virtual environment stays).
	rm -rf build dist *.egg-info vllm/_C*.so
