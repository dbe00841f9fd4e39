# Every target sets itself up: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Two processes of one thread each: small problems are slower on several threads.
# A file is run by one process, the longest first (tests/conftest.py).
# What is compiled is kept, whatever the shell says: tests start processes.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

PAGE ?= playground.html

.PHONY: demo page test test-all check slow bench format docs docs-update dist clean
demo: $(STAMP)
	$(BIN)/widemargin demo --out demo-output
	@echo 'It is also a file that you can send: make page writes playground.html, docs/play.md says what it shows.'

page: $(STAMP)
	$(BIN)/widemargin play --out $(PAGE)

test: $(STAMP)
	$(PYTEST)

test-all: $(STAMP)
	$(PYTEST) -m ""

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/repo-review .
	$(PYTEST) -m "not slow and not long"

# Which tests `make check` leaves out.
slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p measure_slow

bench: $(STAMP)
	$(BIN)/python benchmarks/margins.py

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, in site/. A warning, such as a link that leads nowhere, is an error.
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt '.[docs]'
	$(BIN)/python docs/make_gallery.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Runs every page and rewrites the outputs that it shows where they are stale.
docs-update: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python docs/shown.py --update

# The wheel and the sdist, in dist/; then the wheel alone in an empty environment answers and is believed (tests/smoke.py).
dist: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt build
	rm -rf dist build/empty
	$(BIN)/python -m build --outdir dist .
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	cd build && empty/bin/python -I ../tests/smoke.py verify
	build/empty/bin/python -m pip install --quiet -c constraints.txt "$$(echo dist/*.whl)[train]"
	cd build && empty/bin/python -I ../tests/smoke.py

clean:
	rm -rf .venv demo-output build dist site

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "widemargin needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	touch $(STAMP)
