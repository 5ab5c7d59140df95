# The front door: `make` lists what can be done. Every target sets up what it needs, in a fresh clone too.
#
# Note [Environments]
# ~~~~~~~~~~~~~~~~~~~
# The default torch lives in .venv, any other in an environment of its own, so that switching
# TORCH never rebuilds anything. An environment is complete when its stamp file exists; the stamp's
# name carries a checksum of what decides the content, so touching or checking out a file does not
# rebuild one and changing a pin does. torch is asked for by exact version in the same command as
# memprof: left to `torch>=2.11`, pip would take the newest, which may be one that nobody has tested.
#
# Other torch versions are tested on the simulated device's torch
# (simulated_cuda/): only CUDA wheels of them can be had there, and those load
# only under its run.sh. The CPU tests use CPU tensors there all the same. Its environments are
# shared by every clone on the machine, so nothing is installed into them: ours is a layer on top,
# which sees their packages through a .pth file.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

DEFAULT_TORCH := 2.13.0
# Asked where it comes from below: named by the user, 2.13.0 is simulated too.
TORCH ?= $(DEFAULT_TORCH)
TORCH_INDEX ?=
PYTHON ?= python3
# pytest workers; see Note [Parallel tests] in test/conftest.py.
JOBS ?= auto
# Extra arguments for pytest, e.g. make test ARGS='-k provenance -x'
ARGS ?=
SIMGPU ?= simulated_cuda

SIMGPU_THERE := $(wildcard $(SIMGPU)/run.sh)
# Simulated tests default to the version that the simulated device was written against.
SIMGPU_TORCH := $(if $(filter file,$(origin TORCH)),2.11.0,$(TORCH))
OTHER_TORCH := $(filter-out $(DEFAULT_TORCH),$(TORCH))

VENV := .venv$(addprefix -,$(OTHER_TORCH))
KEY := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
STAMP := $(VENV)/.complete-$(TORCH)-$(KEY)
DOCS_STAMP := $(VENV)/.docs-$(KEY)
SIMGPU_VENV := .venv-simgpu-$(SIMGPU_TORCH)
SIMGPU_SOURCES := $(wildcard $(addprefix $(SIMGPU)/,src/* build.py elf.py libraries.py functions.txt))
# A device built from older sources lacks what the newer Python code calls.
SIMGPU_KEY := $(shell cat pyproject.toml constraints.txt $(SIMGPU_SOURCES) | cksum | cut -d' ' -f1)
SIMGPU_STAMP := $(SIMGPU_VENV)/.complete-$(SIMGPU_TORCH)-$(SIMGPU_KEY)
# A serving engine and its packages, on top of that: docs/serving.md.
ENGINE ?= vllm
SERVING_VENV := .venv-serving-$(ENGINE)-$(SIMGPU_TORCH)
SERVING_KEY := $(shell cat pyproject.toml .ci/serving_environment.py | cksum | cut -d' ' -f1)
SERVING_STAMP := $(SERVING_VENV)/.complete-$(SERVING_KEY)
SIMGPU_PY := TORCH=$(SIMGPU_TORCH) $(SIMGPU)/run.sh $(SIMGPU_VENV)/bin/python

ifneq ($(and $(OTHER_TORCH),$(SIMGPU_THERE)),)
  ENVIRONMENT := $(SIMGPU_STAMP)
  PY := $(SIMGPU_PY)
else
  ENVIRONMENT := $(STAMP)
  PY := $(VENV)/bin/python
endif

PYTEST = -m pytest -n $(JOBS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder $(ARGS)

.PHONY: help demo demo-simulate test test-slow pytest lint lint-js format typecheck typecheck-tests changelog test-simgpu test-simgpu-slow serving-env serving-symbols test-serving test-engine fuzz-trees test-gpu docs gallery dist test-dist sbom conda-recipe coverage proof-kit prove-gpu-rehearsal real-gpu-page bench-memory bench-simulate bench-trees bench-call bench-start bench doctor setup clean

help: ## list the targets
	@echo "make TARGET [TORCH=$(DEFAULT_TORCH)] [TORCH_INDEX=URL] [PYTHON=$(PYTHON)] [JOBS=$(JOBS)] [ARGS='pytest arguments']"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Benchmarks print as they go. With ARGS=--quick each takes less than three minutes on an idle"
	@echo "machine: fewer cases and rounds, and the recorded results are not touched."
	@echo
	@echo "On Linux, PyPI's torch carries CUDA packages of some gigabytes; for the CPU build add"
	@echo "  TORCH_INDEX=https://download.pytorch.org/whl/cpu"

# Passive waiting: where other work takes a core, threads that spin for it make a step ten times slower.
demo: $(ENVIRONMENT) ## train a small GPT for real, print where its memory went, write out/gpt.memprof and out/gpt.html
	OMP_WAIT_POLICY=passive $(PY) examples/gpt/train.py $(ARGS)

# Published by torchtitan (docs/simulation-accuracy.md): 82.4 GiB without, 77.0 with --compile.
demo-simulate: $(SIMGPU_STAMP) ## Llama 3.1 8B on 8 GPUs of 96 GB: what it reserves, without a GPU
	$(SIMGPU_VENV)/bin/python -m memprof simulate -q --gpu h100-80gb --memory 95GiB --world-size 8 -- python examples/llama3/train.py --size 8B $(ARGS)

test: $(if $(OTHER_TORCH),,lint typecheck) pytest ## lint, type-check and run the CPU tests (TORCH=2.15.0: tests only)

pytest: $(ENVIRONMENT) ## the CPU tests alone
	$(PY) $(PYTEST) -m "not simgpu and not gpu and not slow"

test-slow: $(ENVIRONMENT) ## the CPU tests that take long: every model of the zoo, more random programs, some minutes
	$(PY) $(PYTEST) -m "slow and not simgpu and not gpu"

lint: $(STAMP) ## ruff: rules and formatting; import-linter: which package may import which
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

JS := profiler/views/report/html
lint-js: ## types and rules of the pages' scripts, by npm's TypeScript and Biome
	@command -v npm >/dev/null || { echo "skipped: there is no npm, which fetches TypeScript and Biome"; exit 0; }; \
	  cd $(JS) && npx --yes -p typescript@5.9 tsc -p jsconfig.json && npx --yes @biomejs/biome@2.3.8 check assets

format: $(STAMP) ## rewrite the sources the way lint wants them
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

typecheck: $(STAMP) ## mypy --strict, incremental
	$(VENV)/bin/mypy --strict -p memprof

typecheck-tests: $(STAMP) ## mypy of the tests: test/mypy.ini says what it leaves out
	$(VENV)/bin/mypy --config-file test/mypy.ini test

# Lines that no test has reached, over both kinds of tests. The floor is in pyproject.toml. Left out
# are the tests that coverage disturbs: what they count has its own lines and objects among it, and its
# start in a process keeps Inductor's cache from being hit there.
COVERAGE_DISTURBS := test_session.py::test_provenance_in_a_second_process_comes_from_the_cache \
  test_steps.py::test_a_step_costs_the_program_few_lines \
  test_streaming.py::test_no_kind_of_step_leaves_an_object
NOT_COVERED := $(addprefix --deselect=test/compile_backend/,$(COVERAGE_DISTURBS))
coverage: $(STAMP) $(SIMGPU_STAMP) ## how much of the product the tests run, at least the floor: an hour
	rm -f build/coverage/.coverage*
	$(VENV)/bin/coverage run $(PYTEST) $(NOT_COVERED) -m "not simgpu and not gpu"
	SIMGPU_VALUES=1 $(SIMGPU_PY) -m coverage run $(PYTEST) $(NOT_COVERED) -m "simgpu and not slow"
	$(VENV)/bin/coverage combine -q
	$(VENV)/bin/coverage report

changelog: $(STAMP) ## docs/changes.md from the fragments in docs/news: make changelog ARGS='--version 0.3.0'
	$(VENV)/bin/towncrier build --yes $(ARGS)

test-simgpu: $(SIMGPU_STAMP) ## tests on the simulated CUDA device, values included
	SIMGPU_VALUES=1 $(SIMGPU_PY) $(PYTEST) -m "simgpu and not slow"

test-simgpu-slow: $(SIMGPU_STAMP) ## the long ones among them: every model of the zoo, half an hour
	SIMGPU_VALUES=1 $(SIMGPU_PY) $(PYTEST) -m "simgpu and slow"

serving-env: $(SERVING_STAMP) ## an environment with a serving engine, simulated: ENGINE=vllm or sglang

# The last patch releases of 2.14 have an engine each.
OF_2_14 = $(if $(filter 2.14%,$(SIMGPU_TORCH)),$(1),$(SIMGPU_TORCH))
test-serving: ## published memory of both engines beside what the simulated device says, half an hour: TORCH=2.11.0, 2.13.0, 2.14
	$(MAKE) test-engine ENGINE=vllm TORCH=$(call OF_2_14,2.14.0)
	$(MAKE) test-engine ENGINE=sglang TORCH=$(call OF_2_14,2.14.1)

serving-symbols: $(SERVING_STAMP) ## functions of NVIDIA's libraries that an engine's packages want and the simulated device has not
	$(SERVING_VENV)/bin/python .ci/serving_symbols.py $(SERVING_VENV) $${SIMGPU_HOME:-$$HOME/.cache/simgpu}/$(SIMGPU_TORCH)/lib

test-engine: $(SERVING_STAMP) ## that of one engine: ENGINE=vllm or sglang
	$(SERVING_VENV)/bin/python benchmarks/serving.py $(ENGINE) $(ARGS)

fuzz-trees: export FUZZ_EXAMPLES ?= 500
fuzz-trees: $(SIMGPU_STAMP) ## random programs on the graph trees: FUZZ_EXAMPLES=500 ARGS='--hypothesis-seed=0'
	SIMGPU_VALUES=1 $(SIMGPU_PY) -m pytest -q -m simgpu test/cudagraph_trees/test_model.py $(ARGS)

dist: $(STAMP) ## wheel and sdist of torch-memprof, in dist
	rm -rf dist
	$(VENV)/bin/python -m build -q --outdir dist .

# Twice: where nothing is but the wheel and what it asks for, and over the CUDA build of torch,
# which the simulated device needs. Neither environment outlives the next call.
test-dist: dist ## install the wheel into empty environments and use it there: doctor, reports, simulate, a gate
	rm -rf build/empty build/empty-simgpu
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install -q $(addprefix --extra-index-url ,$(TORCH_INDEX)) torch==$(DEFAULT_TORCH) dist/*.whl
	.ci/use_installed build/empty/bin/python train
	$(call over-simgpu,build/empty-simgpu,dist/*.whl,proof)
	.ci/use_installed build/empty-simgpu/bin/python simulate

sbom: ## what the empty environment of test-dist has, as CycloneDX: build/torch-memprof.cdx.json
	$(PYTHON) -m venv build/sbom
	build/sbom/bin/python -m pip install -q cyclonedx-bom==7.5.0
	build/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml -o build/torch-memprof.cdx.json build/empty/bin/python

conda-recipe: ## build/conda-recipe for conda-forge, of the sdist in dist
	mkdir -p build/conda-recipe
	sdist=$$(ls dist/torch_memprof-*.tar.gz); version=$${sdist#dist/torch_memprof-}; \
	  sed "s/VERSION/$${version%.tar.gz}/; s/SHA256/$$(sha256sum $$sdist | cut -d' ' -f1)/" conda-recipe/meta.yaml > build/conda-recipe/meta.yaml

gallery: $(STAMP) $(SIMGPU_STAMP) ## run the scripts of examples/gallery and write docs/gallery.md: ten minutes (ARGS='04 07': these alone)
	PYTHONPATH=. $(VENV)/bin/python examples/gallery/make.py $(VENV)/bin/python $(SIMGPU_VENV)/bin/python $(ARGS)

$(DOCS_STAMP): $(STAMP)
	$(VENV)/bin/python -m pip install -q -c constraints.txt -e '.[dev,docs]'
	@rm -f $(VENV)/.docs-*
	@touch $@

docs: $(DOCS_STAMP) ## the site, in build/site; links are checked, and the notebook is run
	$(VENV)/bin/mkdocs build --strict
	MEMPROF_TEST_NOTEBOOK=1 $(VENV)/bin/python -m pytest -q test/docs/test_shown.py

test-gpu: $(STAMP) ## tests that need a real CUDA device
	$(VENV)/bin/python -m pytest $(ARGS) -m gpu

proof-kit: $(SIMGPU_STAMP) ## build/proof-kit, which measures memprof where it is carried to: docs/real-gpu.md
	rm -rf build/proof-kit
	PYTHONPATH=. $(SIMGPU_PY) benchmarks/proof/kit.py build/proof-kit

# The limits of cases grow with the time for all: a busy machine takes longer.
prove-gpu-rehearsal: proof-kit ## the same kit on the simulated device, in small sizes
	rm -rf build/rehearsal
	mkdir -p build/rehearsal/results
	cp -r build/proof-kit build/rehearsal
	cd build/rehearsal && SIMGPU_NAME='NVIDIA H100 80GB HBM3' PYTHON=$(abspath $(SIMGPU_VENV))/bin/python TORCH=$(SIMGPU_TORCH) \
	  $(abspath $(SIMGPU))/run.sh bash proof-kit/run.sh out --minutes 60 $(ARGS)
	tar xzf build/rehearsal/out/*.tar.gz -C build/rehearsal/results
	cp README.md build/rehearsal
	$(PYTHON) benchmarks/proof/page.py build/rehearsal/results build/rehearsal/page.md build/rehearsal/README.md

real-gpu-page: ## docs/real-gpu.md and the README's sentence, from benchmarks/results/real-gpu
	$(PYTHON) benchmarks/proof/page.py

bench-memory: $(SIMGPU_STAMP) ## device memory of models at real sizes beside inductor and reduce-overhead (simulated)
	$(SIMGPU_PY) benchmarks/device_memory.py $(ARGS)

bench-simulate: $(SIMGPU_STAMP) ## published measurements of device memory beside what the simulated device says
	TORCH=$(SIMGPU_TORCH) $(SIMGPU_VENV)/bin/python benchmarks/simulate_accuracy.py $(ARGS)

bench-call: $(SIMGPU_STAMP) ## host time of a compiled call, beside reduce-overhead (simulated)
	$(SIMGPU_PY) benchmarks/call_budget.py $(ARGS)

bench-trees: $(SIMGPU_STAMP) ## the same of inference alone, results held and dropped
	$(SIMGPU_PY) benchmarks/call_budget.py --trees $(ARGS)

bench-start: $(ENVIRONMENT) ## CPU time of fresh processes until they train, caches cold and warm, beside torch's backend
	$(PY) benchmarks/start.py $(ARGS)

bench: $(ENVIRONMENT) ## host time of a compiled call beside inductor, on the CPU
	$(PY) benchmarks/call_budget.py $(ARGS)

doctor: $(ENVIRONMENT) ## what will and will not work on this machine
	$(PY) -m memprof doctor

setup: $(ENVIRONMENT) ## make the environment that the other targets use

clean: ## delete everything that make made
	rm -rf .venv .venv-* build dist out .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "memprof needs Python 3.10 or newer, $(PYTHON) is $$($(PYTHON) --version 2>&1): set PYTHON=…" >&2; exit 2; }
	@command -v $${CXX:-g++} >/dev/null || command -v clang++ >/dev/null || { \
	  echo "Inductor needs a C++ compiler and neither g++ nor clang++ is on PATH: install one or set CXX" >&2; exit 2; }
	[ -x $(VENV)/bin/python ] || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -c constraints.txt $(addprefix --extra-index-url ,$(TORCH_INDEX)) torch==$(TORCH) -e '.[dev]'
	@rm -f $(VENV)/.complete-*
	@touch $@

# The simulated device's torch comes without the nvidia packages it names, so pip must not look at
# memprof's dependency on torch: the others are read from its metadata.
#   $(call over-simgpu,VENV,PIP'S WORDS FOR MEMPROF,EXTRA)
define over-simgpu
	base=$$($(SIMGPU)/setup.sh $(SIMGPU_TORCH) | tail -n 1)/venv/bin/python; \
	  $$base -m venv $(1); \
	  site='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	  $$base -c "$$site" > "$$($(1)/bin/python -c "$$site")/simgpu.pth"
	$(1)/bin/python -m pip install -q --no-deps $(2)
	$(1)/bin/python .ci/requirements.py $(3) > $(1)/requirements.txt
	$(1)/bin/python -m pip install -q -c constraints.txt -r $(1)/requirements.txt
endef

$(SIMGPU_STAMP):
	@[ -n "$(SIMGPU_THERE)" ] || { \
	  echo "there is no simulated device at $(SIMGPU): set SIMGPU=…, or leave this target out" >&2; exit 2; }
	$(call over-simgpu,$(SIMGPU_VENV),-e .,dev)
	@rm -f $(SIMGPU_VENV)/.complete-*
	@touch $@

$(SERVING_STAMP): $(SIMGPU_STAMP)
	$(PYTHON) .ci/serving_environment.py $(ENGINE) $(SIMGPU_TORCH) $(SIMGPU_VENV) $(SERVING_VENV)
	@rm -f $(SERVING_VENV)/.complete-*
	@touch $@
