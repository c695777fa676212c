# make demo    watch processes being killed, and nothing being lost
# make test    the tests, on the compiled build and on the pure-Python build
# make test-all    these, and their repetitions on the compiled build
# make sanitize    the drills of cuts and of damage under gcc's sanitizers
# make test-hosts    the cache tests of Django, aiocache and cachelib, from their sdists
# make rack    virtual machines that share a device, one of which is lost; needs qemu
# make rack-net    three hosts of a pool over a network, as network namespaces; links are cut; needs root;
#                  ARGS=apart: each with memory of its own
# make docs    the documentation as a site, build/site/index.html
#
# All set up what they need in .venv (and .venv-pure, .venv-bench) the first time, and start at once afterwards.
# PYTHON=python3.12 make ... takes another interpreter; ARGS="..." is handed to the program.

PYTHON ?= python3
ARGS ?=
SOAK_MINUTES ?= 60

BIN := .venv/bin
PURE := .venv-pure/bin
PIP := -m pip --disable-pip-version-check -q
# Python compiles what it imports.
INSTALL := install --no-compile

# Sources of the compiled modules. setup.py makes build/constants of the constants that they take.
TYPES := $(shell find -L limpet -name '*.pxd')
CONSTANTS := $(patsubst build/constants/%.pxd,%.py,$(wildcard build/constants/limpet/*/*.pxd \
    build/constants/limpet/*/*/*.pxd build/constants/limpet/*/*/*/*.pxd))
SOURCES := setup.py pyproject.toml $(TYPES) $(wildcard $(TYPES:.pxd=.py) $(CONSTANTS)) \
    $(shell find -L limpet -name '*.pyx' -o -name '*.pxi' -o -name '*.h')
# What the pure build is made of.
TREE := $(SOURCES) MANIFEST.in README.md $(shell find -L limpet -name '*.py')

# The tests run by folder and build, three runs at a time: tests that kill and stop processes wait now
# and then, so three keep two cores busy. Those come first that take longest. Those of fault/ are two
# runs, so that one core does not wait for the other at the end.
FOLDERS := stores fault-a-l fault-m-z others
RUNS := $(foreach folder,$(FOLDERS),compiled-$(folder) pure-$(folder))
ONLY_stores := stores
ONLY_fault-a-l := fault/test_[a-l]*.py
ONLY_fault-m-z := fault/test_[m-z]*.py
ONLY_others := . --ignore=stores --ignore=fault
PART ?= all
PYTEST := -c ../pyproject.toml --rootdir=..

.PHONY: demo setup test test-rest test-all test-hosts $(RUNS) lint bench rack rack-net soak sanitize docs clean

# Packages of the pure build are installed beside the compilation.
setup:
	$(MAKE) -j1 .venv-pure/archive
	$(MAKE) -j2 .venv/tools .venv-pure/built

demo: .venv/built
	$(BIN)/limpet demo $(ARGS)

# All runs, also when one fails; what each prints comes when it has ended. Their needs are made
# before: they share a directory. tests/kit/parts.py says which tests each part has.
test: setup
	$(MAKE) -k -j3 --output-sync=target PART=quick $(RUNS)

test-rest: .venv/tools
	$(MAKE) -k -j3 --output-sync=target PART=rest $(filter compiled-%,$(RUNS))

test-all: setup
	$(MAKE) -k -j1 test test-rest

# From inside tests/, so that the installed package is imported and not the tree.
$(filter compiled-%,$(RUNS)): compiled-%: .venv/tools
	cd tests && LIMPET_EXPECT_BUILD=compiled ../$(BIN)/python -m pytest $(PYTEST) $(ONLY_$*) \
	    --part $(PART) $(ARGS)

$(filter pure-%,$(RUNS)): pure-%: .venv-pure/built
	cd tests && LIMPET_EXPECT_BUILD=pure ../$(PURE)/pytest $(PYTEST) $(ONLY_$*) \
	    --part $(PART) $(ARGS)

# Downloads the sdists, and plugins for their tests, into build/hosts (tests/hosts/run.py).
test-hosts: .venv/tools
	$(BIN)/python tests/hosts/run.py build/hosts

lint: .venv/tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv-bench/built
	.venv-bench/bin/limpet bench peers $(ARGS)

# Virtual machines that share device DAX; a machine, its power or a device is lost (docs/hosts.md).
# It says what it needs and how to get that. docs/rack.txt has the last whole run; a run of some
# scenarios (ARGS) writes to docs/rack.txt.part.
rack: .venv/tools
	$(BIN)/limpet rack --report docs/rack.txt $(ARGS)

rack-net: .venv/built
	$(BIN)/python -m limpet.fault.rack.network $(ARGS)

# The drills of cuts and of damage on a build with bounds checks and gcc's sanitizers (setup.py), in a
# directory of its own; the modules in the tree stay as they are. The first error ends the run.
SANITIZED := build/sanitize
SANITIZE_CUTS := --seconds 1 --stride 23 --verbs 200
SANITIZE_DAMAGE := --cases 100
sanitize: $(SANITIZED)/built
	cd $(SANITIZED)/tree && run() { PYTHONPATH=. LD_PRELOAD=$$($(CC) -print-file-name=libasan.so) \
	    ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0 UBSAN_OPTIONS=halt_on_error=1 \
	    ../../../$(BIN)/python -m limpet drill "$$@"; }; \
	run cuts $(SANITIZE_CUTS) $(ARGS) && run damage $(SANITIZE_DAMAGE)

$(SANITIZED)/built: .venv/built $(TREE)
	rm -rf $(SANITIZED)/dist && mkdir -p $(SANITIZED)/tree
	LIMPET_PURE=1 $(BIN)/python setup.py -q sdist -d $(SANITIZED)/dist
	tar -xzf $(SANITIZED)/dist/*.tar.gz --strip-components=1 -C $(SANITIZED)/tree
	@echo "compiling; takes some minutes"
	cd $(SANITIZED)/tree && LIMPET_PURE= LIMPET_CHECKED=sanitize CFLAGS=-O0 \
	    ../../../$(BIN)/python setup.py -q build_ext --inplace
	@touch $@

# Demos, all drills and the tests of both builds by turns (fault/drill/soak.py), until SOAK_MINUTES
# are over or one of them fails. ARGS are the demo's.
soak: .venv/tools .venv-pure/built
	$(BIN)/limpet drill soak --minutes $(SOAK_MINUTES) --tests -- $(ARGS)

# Every link is checked; the first that leads nowhere ends it.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Removes what was built, never a pool.
clean:
	rm -rf .venv .venv-pure .venv-bench build dist limpet.egg-info
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find shm stores fault bench limpet tests \( -name '*.so' -o -name '*.c' \) -type f -delete
	find shm stores fault bench limpet tests examples -name __pycache__ -type d -exec rm -rf {} +

# ---- setting up --------------------------------------------------------------------------------

define NEW_VENV
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
    { echo "limpet needs Python 3.10 or newer; name one: make PYTHON=python3.12" >&2; exit 1; }
@$(PYTHON) -c 'import ensurepip, venv' || \
    { echo "$(PYTHON) has no venv module (Debian, Ubuntu: python3-venv)" >&2; exit 1; }
rm -rf $(@D)
$(PYTHON) -m venv $(@D)
@touch $@
endef

# The build's requirements, as pyproject.toml names them.
define REQUIRES
@$(@D)/bin/python -c 'import ast, re; \
    text = open("pyproject.toml").read(); \
    print(*ast.literal_eval(re.search(r"^requires = (\[.*?\])", text, re.M | re.S)[1]), sep="\n")' \
    > $(@D)/requires.txt
$(@D)/bin/python $(PIP) $(INSTALL) -r $(@D)/requires.txt
endef

# The extras of limpet for tests, style and benchmarks, or for the site. (To install '.[test]' would
# compile it again.)
EXTRA_NAMES := test lint peers
define EXTRAS
@$(@D)/bin/python -c 'import importlib.metadata as metadata; \
    wanted = [f"extra == \"{name}\"" for name in "$(EXTRA_NAMES)".split()]; \
    print(*(line.replace(extra, "python_version > \"3\"") for line in metadata.requires("limpet") \
            for extra in wanted if extra in line), sep="\n")' > $(@D)/extras.txt
$(@D)/bin/python $(PIP) $(INSTALL) -r $(@D)/extras.txt
endef

.venv/made:
	@command -v $${CC:-cc} > /dev/null || \
	    { echo "limpet needs a C compiler (Debian, Ubuntu: gcc, python3-dev)" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; \
	    sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || \
	    { echo "$(PYTHON) has no header files (Debian, Ubuntu: python3-dev)" >&2; exit 1; }
	$(NEW_VENV)

.venv-pure/made .venv-bench/made:
	$(NEW_VENV)

.venv/built: .venv/made $(SOURCES)
	$(REQUIRES)
	@echo "compiling; takes three to five minutes on two cores"
	LIMPET_PURE= $(BIN)/python $(PIP) $(INSTALL) --no-build-isolation -e .
	@touch $@

# Optimised as a wheel is; the tree is not (setup.py).
.venv-bench/built: .venv-bench/made $(TREE)
	$(REQUIRES)
	rm -rf build/lib.*
	LIMPET_PURE= .venv-bench/bin/python $(PIP) $(INSTALL) --no-build-isolation '.[peers]'
	@touch $@

.venv/tools .venv/docs: .venv/built
	$(EXTRAS)
	@touch $@
.venv/docs: EXTRA_NAMES := docs

# By way of the sdist, as the compiled modules in the tree must not get in.
.venv-pure/archive: .venv-pure/made $(TREE)
	$(REQUIRES)
	rm -rf .venv-pure/dist
	LIMPET_PURE=1 $(PURE)/python setup.py -q sdist -d .venv-pure/dist
	@touch $@

.venv-pure/built: .venv-pure/archive
	LIMPET_PURE=1 $(PURE)/python $(PIP) wheel --no-build-isolation --no-deps --no-cache-dir \
	    -w .venv-pure/dist .venv-pure/dist/*.tar.gz
	wheel=$$(ls .venv-pure/dist/limpet-*-py3-none-any.whl) && \
	    $(PURE)/python $(PIP) $(INSTALL) "$$wheel[test]" && \
	    $(PURE)/python $(PIP) install --force-reinstall --no-deps "$$wheel"
	@touch $@
