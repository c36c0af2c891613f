# make run   the demonstration: compares methods on built-in data (installs into .venv first)
# make federation   a server and three sites as processes on this machine, over mutual TLS
# make docs  the documentation site, in build/site
# make test  everything that is checked before a change lands; JOBS=8 uses eight processes
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: run federation docs test test-long bench clean

run: .venv/ready
	$(BIN)/motet compare docs/study.toml

federation: .venv/ready-for-federations
	$(BIN)/motet federation demo

docs: .venv/ready-for-tests
	$(BIN)/python docs/assemble.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: .venv/ready-for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(JOBS) --dist loadgroup

# What takes too long for every change: many kills, every method between processes, fuzzing, compiling.
test-long: .venv/ready-for-tests
	$(BIN)/pytest -m long -s --timeout=3600

# Against a plain PyTorch loop, Flower's simulation and pfl, each in an environment of its own; against PFLlib and FL-bench
# where MOTET_PFLLIB and MOTET_FLBENCH name checkouts; published workloads; growth curves; a thousand machines.
bench: .venv/ready
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/published.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/thousand_machines.py

.venv/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[stacking]"
	touch $@

.venv/ready-for-federations: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[flare,stacking]"
	touch .venv/ready $@

.venv/ready-for-tests: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch .venv/ready .venv/ready-for-federations $@

clean:
	rm -rf .venv runs
