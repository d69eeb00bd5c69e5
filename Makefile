# On a fresh machine: `make demo` or `make test`. Both install everything first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export OMP_NUM_THREADS := 1

.PHONY: help install install-verified browser lock demo test lint test-faults mutate coverage docs bench dist clean

help:
	@echo "make install      a virtual environment in .venv with everything"
	@echo "make install-verified  the same, every package but torch checked against its hash"
	@echo "make browser      Debian's chromium, for the tests of the review page (root, where apt works)"
	@echo "make lock         constraints-hashes.txt anew from constraints.txt"
	@echo "make demo         compares a few methods on embedded data and finds its wrong labels, with pages to open (about 2 minutes)"
	@echo "make test         lint, types and all tests"
	@echo "make test-faults  the long fault tests: 200 kills, 12,000 hostile reports, and Flower nodes that die"
	@echo "make mutate       breaks each formula of a list and shows that a test notices (about 20 minutes)"
	@echo "make coverage     which lines of src no test reaches (about 30 minutes)"
	@echo "make docs         the documentation as a site, in site/index.html"
	@echo "make dist         wheel and source archive, tried in an empty environment"
	@echo "make bench        the benchmarks, as ratios measured in one run"

install: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e ".[dev,flower]"
	touch $(READY)

# torch has no hash: its builds for processors and for each kind of GPU share one version.
install-verified:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-deps --require-hashes -r constraints-hashes.txt
	$(BIN)/pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --no-deps -e .
	touch $(READY)

# Where it cannot be installed, the tests that need it say so and are skipped.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& apt-get --quiet --quiet update && apt-get install --yes --quiet --no-install-recommends chromium; } || echo "no chromium: the review page is not tested"

lock: install
	grep -v '^torch==' constraints.txt | $(BIN)/uv pip compile - --no-deps --universal --generate-hashes --no-header \
		--no-annotate --quiet --output-file constraints-hashes.txt

demo: install
	$(BIN)/fedsieve compare experiments/demo.yaml
	$(BIN)/fedsieve audit clients=20 noise=symmetric noise.rates=rho-tau noise.rho=1.0 noise.tau=0.5 out=runs/demo-labels overwrite=true --quiet
	$(BIN)/fedsieve review runs/demo-labels --owner 0 --static runs/demo-labels/review.html
	@echo "open runs/demo/report.html (the methods), runs/demo-labels/report.html (the labels), runs/demo-labels/review.html (decide about them)"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint browser
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-faults: install
	FEDSIEVE_KILLS=200 FEDSIEVE_REPORTS=12000 FEDSIEVE_DAMAGES=60 $(BIN)/python -m pytest tests/fault tests/attack tests/flower/test_deployment_faults.py

mutate: install
	$(BIN)/python tools/mutate.py

# The tests run as in `make test`; worker processes and commands are followed too.
coverage: install
	$(BIN)/coverage erase
	-COVERAGE_PROCESS_START=pyproject.toml $(BIN)/coverage run -m pytest -n 2 --dist worksteal
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

dist: install
	rm -rf dist build
	$(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist
	test -x dist/try/bin/python || $(PYTHON) -m venv dist/try
	dist/try/bin/pip install --quiet -c constraints.txt torch==2.13.0
	dist/try/bin/pip install --quiet -c constraints.txt dist/*.whl
	cd dist && try/bin/fedsieve run rounds=1 clients=4 epochs=1 out=try/run --quiet && try/bin/fedsieve --version
	rm -rf dist/try

bench: install
	$(BIN)/python benchmarks/round_overhead.py
	$(BIN)/python benchmarks/method_overhead.py
	$(BIN)/python benchmarks/method_overhead.py --method ksim
	$(BIN)/python benchmarks/run_cost.py
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/federation_speed.py
	$(BIN)/python benchmarks/dawid_skene_speed.py
	$(BIN)/python benchmarks/fedds_share.py
	$(BIN)/python benchmarks/hog_speed.py
	$(BIN)/python benchmarks/flower_overhead.py
	$(BIN)/python benchmarks/review_page.py

clean:
	rm -rf $(VENV) build dist site .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis
