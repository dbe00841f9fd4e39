# Every target sets itself up: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Two processes of one thread each: small problems are slower on several threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

PAGE ?= playground.html

.PHONY: demo page test test-all check bench format clean
demo: $(STAMP)
	$(BIN)/widemargin demo --out demo-output

page: $(STAMP)
	$(BIN)/widemargin play --out $(PAGE)

test: $(STAMP)
	$(PYTEST)

test-all: $(STAMP)
	$(PYTEST) -m ""

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow and not long"

bench: $(STAMP)
	$(BIN)/python benchmarks/margins.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv demo-output build dist

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "widemargin needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	touch $(STAMP)
