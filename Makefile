# Everything runs in an own .venv, made on first use: `make demo` and `make test` need Python 3.11 and nothing else (the library itself runs on 3.10; the pins of constraints.txt do not).

# The first interpreter that is new enough; say `make PYTHON=/path/to/python ...` for another one.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo "$$python" && break; done)
VENV ?= .venv
# How many processes the tests are spread over.
JOBS ?= 2
# How long `make fuzz` looks.
MINUTES ?= 10

# ExecuTorch is tested beside .venv, which it would change: transformers imports the torchao that it needs. Of what it
# asks for (scikit-learn, pandas, coremltools and more, half a GB) a conversion and the runtime need no more than this.
EXECUTORCH := executorch==1.5.1 torchao==0.18.0 ruamel.yaml==0.19.1 tabulate==0.10.0
WITH_EXECUTORCH := $(VENV)-executorch
# The readers of folders that onlooker writes: sentence-transformers with its ONNX backend, which runs beside transformers 4
# only, and transformers.js, where there is npm. The tests start them as processes of their own.
READERS := sentence-transformers==5.7.0 transformers==4.57.6 huggingface-hub==0.36.2 tokenizers==0.22.2 optimum==2.1.0 optimum-onnx==0.1.0
READERS_OF_NPM := @huggingface/transformers@4.3.1
# These run where the readers are, and no others.
OF_READERS := tests/targets/test_sentence_transformers.py tests/targets/test_web.py
WITH_READERS := $(VENV)-readers
# Engines that run jobs and trials on other machines, here in processes of this one; agents, services, tables of calls and metrics.
ENGINES := distributed==2026.8.0 dask==2026.8.0 loky==3.7.0 submitit==1.5.4 mcp==2.3.0 mcp-types==2.3.0 cloudpickle toolz zict msgpack tblib sortedcontainers locket partd click tornado psutil \
	jsonschema jsonschema-specifications referencing rpds-py opentelemetry-api opentelemetry-sdk opentelemetry-semantic-conventions pyarrow==26.0.1 duckdb==2.0.1 fastapi annotated-doc pyjwt cryptography cffi pycparser python-multipart sse-starlette starlette
WITH_ENGINES := $(VENV)-engines
# Sphinx is kept beside .venv too: nothing that is tested needs it.
WITH_SPHINX := $(VENV)-docs

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt
SOURCES := src tests examples upstream docs/conf.py docs/site
DOCS := build/docs

# One thread per process, since the tests run in several; and nothing is ever fetched from a hub.
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE := 1
# Where an image of a container forbids it, each of the many processes would compile every source again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo environments test test-versions test-engines test-executorch test-readers docs fuzz bench matrix release-check lint format clean

help:
	@echo 'make demo    watch a tiny Llama, export it to torch and ONNX, prove both on calls they never saw'
	@echo 'make test    ruff, mypy, import-linter and pytest: what continuous integration runs'
	@echo 'make test-versions     a demo and few of the tests with the oldest and the newest torch, where these can be had quickly'
	@echo 'make test-executorch   the tests of the target ExecuTorch, in an environment of their own'
	@echo 'make test-readers      folders for sentence-transformers and transformers.js, run by these, in an environment of their own'
	@echo 'make test-engines      sweeps and verifications on Dask, loky and submitit, and the tools of agents, in an environment of their own'
	@echo 'make docs    the site of the documentation, in $(DOCS), with warnings as errors; nothing is fetched while it is built'
	@echo 'make fuzz    the laws of the tests on other random examples, for 10 minutes: MINUTES=1 for one'
	@echo 'make bench   every figure beside its target, and docs/benchmarks.md; QUICK=1 for a short one, ONLY=name for one'
	@echo 'make matrix  the demo, the zoo and the fast tests for each torch and Python; CELL=3.10=2.10 for one'
	@echo 'make release-check  build sdist and wheel twice, check, install and use them'
	@echo 'make lint    ruff, mypy and import-linter only'
	@echo 'make format  let ruff rewrite what it can'
	@echo 'make clean   remove .venv, caches and outputs'

demo: $(VENV)/.installed
	@$(BIN)/onlooker demo

test: lint
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal --doctest-modules src tests $(addprefix --ignore=,$(OF_READERS))

# What the tests below are run in, made by itself: it waits for the network more than for a processor.
environments: $(WITH_EXECUTORCH)/.installed $(WITH_READERS)/.installed $(WITH_SPHINX)/.installed

test-versions: $(VENV)/.installed
	$(BIN)/python tests/matrix.py --smoke 3.10=2.10 3.13=2

test-executorch: $(WITH_EXECUTORCH)/.installed
	$(WITH_EXECUTORCH)/bin/python -m pytest --numprocesses $(JOBS) --dist loadfile -k executorch tests/targets/executorch tests/verify/test_broken_conversions.py

test-readers: $(WITH_READERS)/.installed
	ONLOOKER_READERS='$(abspath $(WITH_READERS))' $(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(OF_READERS)

test-engines: $(WITH_ENGINES)/.installed
	$(WITH_ENGINES)/bin/python -m pytest tests/engines

docs: $(WITH_SPHINX)/.installed
	$(WITH_SPHINX)/bin/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs $(DOCS)
	$(WITH_SPHINX)/bin/python docs/site/check_pages.py $(DOCS)

fuzz: $(VENV)/.installed
	$(BIN)/python tests/fuzz.py --minutes $(MINUTES) --jobs $(JOBS)

bench: $(VENV)/.installed
	$(BIN)/python benchmarks $(ONLY) $(if $(QUICK),--quick)

matrix:
	'$(PYTHON)' tests/matrix.py $(addprefix --cell ,$(CELL))

release-check: $(VENV)-release/.installed
	$(VENV)-release/bin/python tests/release.py $(RELEASE)

lint: $(VENV)/.installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean:
	rm -rf $(VENV) $(WITH_EXECUTORCH) $(WITH_READERS) $(WITH_ENGINES) $(WITH_SPHINX) $(VENV)-release .matrix docs/gallery out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache src/*.egg-info
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps below make a second run skip the installation.

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(PIP) --editable '.[all]'
	@touch $@

# Makes the environment $(1), which has the packages of .venv and, before them, those that pip finds by $(2).
define environment_beside
	'$(PYTHON)' -m venv $(1)
	$(1)/bin/python -m pip --disable-pip-version-check install --no-deps $(2)
	site=$$($(abspath $(BIN))/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		own=$$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
		echo "import site; site.addsitedir('$$site')" > "$$own/beside.pth"
	@touch $(1)/.installed
endef

$(WITH_EXECUTORCH)/.installed: $(VENV)/.installed Makefile
	$(call environment_beside,$(WITH_EXECUTORCH),$(EXECUTORCH))

$(WITH_READERS)/.installed: $(VENV)/.installed Makefile
	@npm install --prefix $(WITH_READERS)/node --ignore-scripts --no-audit --no-fund $(READERS_OF_NPM) \
		|| echo 'the packages of npm could not be installed: the tests that run them are skipped'
	$(call environment_beside,$(WITH_READERS),$(READERS))

$(WITH_ENGINES)/.installed: $(VENV)/.installed Makefile
	$(call environment_beside,$(WITH_ENGINES),$(ENGINES))

$(WITH_SPHINX)/.installed: $(VENV)/.installed docs/requirements.txt
	$(call environment_beside,$(WITH_SPHINX),--requirement docs/requirements.txt)

$(VENV)-release/.installed: Makefile
	'$(PYTHON)' -m venv $(VENV)-release
	$(VENV)-release/bin/python -m pip --disable-pip-version-check install build twine pipx mypy 'pyright[nodejs]'
	@touch $@

# torch alone and first: one resolution for everything may replace a CPU build with several GB of CUDA.
$(VENV)/.torch: $(VENV)/.created constraints.txt
	$(PIP) torch
	@touch $@

$(VENV)/.created:
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo 'make needs Python 3.11 or newer, and "$(PYTHON)" is not that:' \
			'install one, or name it with make PYTHON=/path/to/python' >&2; exit 1; }
	@'$(PYTHON)' -m venv $(VENV) || { \
		echo 'A virtual environment could not be made: the venv module of Python is missing' \
			'(on Debian and Ubuntu: apt-get install python3-venv).' >&2; rm -rf $(VENV); exit 1; }
	@touch $@
