# make demo and make test do everything on a fresh machine; `make help` lists the usual targets.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A changed dependency, pin or package layout makes the installation stale; other edits do not.
STATE := $(shell cat setup.py pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
UV := $(shell command -v uv 2>/dev/null)
DEMO := demo
COMMA := ,
# Processes of one run of pytest: tests wait for files and child processes.
PROCESSES ?= 3
PYTEST := $(BIN)/python -m pytest -q -n $(PROCESSES) --dist loadgroup

ifdef UV
NEW_VENV = $(UV) venv --quiet --allow-existing --python "$(PYTHON)" $(VENV)
# Compiled once: else each process of a test would compile Beam or TensorFlow again.
INSTALL = $(UV) pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt
else
NEW_VENV = $(PYTHON) -m venv $(VENV)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
endif

.DEFAULT_GOAL := help
.PHONY: help demo test light test-all test-heavy test-nightly environment servers test-flink test-prism test-gcs test-s3 test-airflow test-interop \
  test-wheel test-wheels wheels test-pythons test-lowest test-pillow dist release-check lint types docs docs-look soak bench bench-startup bench-count bench-peers bench-rows \
  bench-reading bench-elements test-benchmarks \
  bench-scale mutants constraints format clean

# A target is in the list if its comment names a group: `## Tests: ...`. CONTRIBUTING.md and .ci/nightly name some others.
GROUPS := "Every day" Tests Releases Dataflow Measurements

help:
	@for group in $(GROUPS); do echo "$$group"; \
	  sed -nE "s/^([a-z0-9-]+):[^#]*## $$group: /  \1\t/p" $(MAKEFILE_LIST) | expand -t 20; done

$(BIN)/python:
	@$(NEW_VENV)

# Extras that are installed together are resolved once: .installed-dev,docs-STATE.
$(VENV)/.installed-%-$(STATE): | $(BIN)/python
	@echo "Installing shardmill[$*] into $(VENV)"
	@$(INSTALL) --editable '.[$*]'
	@for each in $(subst $(COMMA), ,$*) $*; do rm -f $(VENV)/.installed-$$each-*; touch $(VENV)/.installed-$$each-$(STATE); done

demo: $(VENV)/.installed-examples-$(STATE)  ## Every day: Build, verify and show two datasets
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python examples/demo.py $(DEMO)

test: $(VENV)/.installed-dev-$(STATE)  ## Every day: Run the tests that have no separate target
	@$(PYTEST) -m 'not heavy and not nightly'

light: $(VENV)/.installed-light-$(STATE)  ## Tests: Run the tests of schemas and transforms that need no training framework
	@$(PYTEST) -m 'not heavy and not nightly' tests/schemas tests/transforms

test-all: $(VENV)/.installed-dev-$(STATE)  ## Tests: Run the tests of test and test-heavy
	@$(PYTEST) -m 'not nightly'

test-heavy: $(VENV)/.installed-dev-$(STATE)  ## Tests: Run slow tests: kills, races, training, servers, commands of the docs
	@$(PYTEST) -m 'heavy and not nightly'

test-nightly: $(VENV)/.installed-dev-$(STATE)
	@$(PYTEST) -m nightly

test-flink: $(VENV)/.installed-dev-$(STATE)  ## Tests: Run the tests on a Flink cluster, which it starts
	@deploy/flink/install.sh
	@$(BIN)/python -m pytest -q --timeout 900 tests/cluster/test_flink*.py

test-prism: $(VENV)/.installed-dev-$(STATE)  ## Tests: Run the tests on Prism
	@deploy/prism/install.sh
	@$(BIN)/python -m pytest -q tests/cluster/test_prism.py

test-gcs: $(VENV)/.installed-dev-$(STATE)  ## Tests: Run the fault tests of gs:// on an emulator
	@deploy/gcs/install_emulator.sh
	@$(BIN)/python -m pytest -q tests/cluster/test_gcs*.py

test-s3: $(VENV)/.installed-dev-$(STATE)  # Run the tests on a strict server of s3://
	@$(BIN)/python -m tests.support.s3_server
	@$(BIN)/python -m pytest -q -n 3 --dist loadscope tests/cluster/test_s3*.py

environment: $(VENV)/.installed-dev,lint,docs,examples-$(STATE)  # Install what the checks of continuous integration need
	@:

servers:  # Install the servers that tests run on, except Flink and Prism, which need the environment
	@deploy/gcs/install_emulator.sh
	@deploy/airflow/install.sh > /dev/null

docs: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-docs-$(STATE)  ## Every day: Build the docs site into build/docs
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d .cache/doctrees docs build/docs
	@$(BIN)/python docs/_tools/check_site.py build/docs

docs-look: docs $(VENV)/.installed-look-$(STATE)  # Check the docs site in a browser; pictures in build/look
	@$(BIN)/python docs/_tools/look.py build/docs build/look

dist: $(VENV)/.installed-release-$(STATE)  ## Releases: Build wheel, source distribution and a list of what they install, and check them
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . > dist.log 2>&1 || (cat dist.log; false)
	@rm -f dist.log
	@$(BIN)/python -m twine check --strict dist/*
	@$(PYTHON) -m venv --clear .cache/sbom
	@.cache/sbom/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	@$(BIN)/cyclonedx-py environment --output-reproducible --of JSON -o dist/sbom.json .cache/sbom

test-wheel: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-release-$(STATE)  ## Tests: Install the wheel on this Python, and follow the README
	@SHARDMILL_PYTHONS=here $(BIN)/python -m pytest -q tests/cluster/test_wheel.py

test-wheels: $(VENV)/.installed-dev-$(STATE)  # Check where all wheels exist, without installing them (needs uv)
	@$(BIN)/python docs/_tools/wheels.py --check

wheels: $(VENV)/.installed-dev-$(STATE)  # Find out where all wheels exist, and write the table of the docs (needs uv)
	@$(BIN)/python docs/_tools/wheels.py

test-pythons: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-release-$(STATE)  # The same on each installed Python from 3.10 to 3.13
	@$(BIN)/python -m pytest -q tests/cluster/test_wheel.py

release-check:  ## Releases: Check all that a release needs short of the upload: version, changelog, tag, distributions
	@.ci/release-check

test-lowest:  # Run the tests of light with the lowest versions that setup.py allows (needs uv)
	@$(UV) venv --quiet --clear --python "$(PYTHON)" .cache/lowest
	@$(UV) pip install --quiet --resolution lowest-direct --python .cache/lowest/bin/python --editable '.[light]'
	@# Old packages of Google warn of this year's Pythons.
	@PYTHONWARNINGS=ignore::FutureWarning .cache/lowest/bin/python -m pytest -q -n $(PROCESSES) -m 'not heavy and (sweep or not nightly)' tests/schemas tests/transforms

# Tests of images, and of the pipelines that read them.
IMAGE_TESTS := tests/transforms/images $(addprefix tests/pipelines/test_,annotations.py extras.py images.py images_faults.py options.py \
  python_source.py resizer.py)
test-pillow:  # Run the tests of images without the wheel of cykooz-resizer, as on Linux with ARM (needs uv)
	@$(UV) venv --quiet --clear --python "$(PYTHON)" .cache/pillow
	@$(UV) pip install --quiet --compile-bytecode --python .cache/pillow/bin/python --constraint constraints.txt --editable '.[test]'
	@$(UV) pip uninstall --quiet --python .cache/pillow/bin/python cykooz-resizer
	@.cache/pillow/bin/python -m pytest -q -n $(PROCESSES) --dist loadgroup $(IMAGE_TESTS)

test-airflow: $(VENV)/.installed-dev-$(STATE)  ## Tests: Run the DAGs in Airflow
	@env=$$(deploy/airflow/install.sh) && AIRFLOW_ENV=$$env $(BIN)/python -m pytest -q --timeout 600 tests/cluster/test_airflow*.py

test-interop: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-interop-$(STATE)  # Read datasets with other libraries
	@$(BIN)/python -m pytest -q --timeout 900 tests/cluster/test_interop*.py

test-dataflow: $(VENV)/.installed-dev-$(STATE)  ## Tests: Run jobs on an emulated Dataflow service
	@deploy/gcs/install_emulator.sh
	@$(BIN)/python -m pytest -q --timeout 300 tests/cluster/test_dataflow*.py

test-container: $(VENV)/.installed-dev-$(STATE)  # Build the image for Dataflow and run its worker
	@$(BIN)/python -m pytest -q --timeout 1800 tests/cluster/test_container*.py

# Google Dataflow; see docs/dataflow.md. `make -n TARGET` prints the commands without running them.
PROJECT ?= YOUR_PROJECT
BUCKET ?= YOUR_BUCKET
REGION ?= europe-west1
DOCKER ?= docker
EXTRAS ?= dataflow
RELEASE := $(shell sed -n 's/^    version="\(.*\)",$$/\1/p' setup.py)
IMAGE ?= $(REGION)-docker.pkg.dev/$(PROJECT)/shardmill/shardmill:$(RELEASE)
LAUNCHER ?= $(REGION)-docker.pkg.dev/$(PROJECT)/shardmill/shardmill-launcher:$(RELEASE)
TEMPLATE ?= gs://$(BUCKET)/templates/shardmill-$(RELEASE).json
JOB ?= shardmill-$(shell date -u +%Y%m%d-%H%M%S)
PARAMETERS ?= command=images;input=gs://$(BUCKET)/flower_photos;output=gs://$(BUCKET)/datasets/flowers

.PHONY: dataflow-setup dataflow-image dataflow-template dataflow-run metadata container

dataflow-setup:  # Enable the APIs in PROJECT and create a repository for images
	gcloud services enable dataflow.googleapis.com compute.googleapis.com artifactregistry.googleapis.com storage.googleapis.com --project=$(PROJECT)
	gcloud artifacts repositories describe shardmill --location=$(REGION) --project=$(PROJECT) > /dev/null || gcloud artifacts repositories create shardmill --repository-format=docker --location=$(REGION) --project=$(PROJECT)
	gcloud auth configure-docker $(REGION)-docker.pkg.dev

container:  ## Dataflow: Build the images for Dataflow: IMAGE of the workers, and LAUNCHER of templates
	$(DOCKER) build --file=deploy/dataflow/Dockerfile --target=worker --build-arg=EXTRAS=$(EXTRAS) --tag=$(IMAGE) .
	$(DOCKER) build --file=deploy/dataflow/Dockerfile --target=template --build-arg=IMAGE=$(IMAGE) --build-arg=EXTRAS=$(EXTRAS) --tag=$(LAUNCHER) .

dataflow-image: container  # Build the images and push them
	$(DOCKER) push $(IMAGE)
	$(DOCKER) push $(LAUNCHER)

dataflow-template: $(VENV)/.installed-dataflow-$(STATE)  ## Dataflow: Write a flex template of LAUNCHER and IMAGE to TEMPLATE
	mkdir -p build
	$(BIN)/python deploy/dataflow/template.py $(LAUNCHER) $(IMAGE) build/template.json
	gcloud storage cp build/template.json $(TEMPLATE) --project=$(PROJECT)

dataflow-run:  ## Dataflow: Run the template with PARAMETERS, which are name=value;...
	gcloud dataflow flex-template run $(JOB) --template-file-gcs-location=$(TEMPLATE) --project=$(PROJECT) --region=$(REGION) --staging-location=gs://$(BUCKET)/staging --temp-location=gs://$(BUCKET)/temp --parameters='^;^$(PARAMETERS)'

metadata: $(VENV)/.installed-dataflow-$(STATE)  ## Every day: Regenerate the files that list commands and flags
	@$(BIN)/python deploy/dataflow/template.py
	@$(BIN)/python deploy/airflow/input_kinds.py

lint: $(VENV)/.installed-lint-$(STATE)  ## Every day: Check style and wording
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python docs/_tools/check_wording.py
	@$(BIN)/python docs/_tools/check_names.py
	@$(BIN)/hadolint $(shell git ls-files '*Dockerfile')

types: $(VENV)/.installed-dev-$(STATE)  ## Every day: Check types
	@MYPYPATH=src $(BIN)/mypy --package shardmill

format: $(VENV)/.installed-lint-$(STATE)  ## Every day: Fix what style checks can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Each benchmark with little data; of the other tools only Shardmill, which needs no separate environment.
SMALL = "count.py --small" "elements.py --count=20000 --repeats=1" "images.py --small" "passed_functions.py" "reading.py --small" "rows.py --small" \
  "scale.py --small" "startup.py" "wide_tables.py --repeats=1 --shapes 500x12" \
  "peers.py .cache/small --tools shardmill --counts 5 10 --large 1 2 --small 20 40 --rows 100 200 --photos 50 --added 5 --removed 2 --rounds 1"
test-benchmarks: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-bench-$(STATE)  # Run each benchmark with little data (a quarter of an hour)
	@rm -rf .cache/small
	@set -e; for each in $(SMALL); do echo "== $$each"; $(BIN)/python benchmarks/$$each; done

bench: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-bench-$(STATE)  ## Measurements: Measure speed and memory (half an hour)
	@$(BIN)/python benchmarks/images.py

bench-startup: $(VENV)/.installed-dev-$(STATE)  # Measure whole commands on one input (a minute)
	@$(BIN)/python benchmarks/startup.py

bench-count: $(VENV)/.installed-dev-$(STATE)  # Measure counting (a quarter of an hour)
	@$(BIN)/python benchmarks/count.py

bench-rows: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-bench-$(STATE)  # Measure rows (half an hour)
	@$(BIN)/python benchmarks/rows.py

bench-elements: $(VENV)/.installed-dev-$(STATE)  # Compare WriteDataset with WriteToTFRecord (half an hour)
	@$(BIN)/python benchmarks/elements.py

bench-reading: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-bench-$(STATE)  # Measure the loaders (half an hour)
	@$(BIN)/python benchmarks/reading.py

PEERS ?= .cache/peers
bench-peers: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-bench-$(STATE)  # Compare with other tools, installed below PEERS (hours; resumable)
	@$(BIN)/python benchmarks/peers.py $(PEERS) --page docs

bench-scale: $(VENV)/.installed-dev-$(STATE) $(VENV)/.installed-bench-$(STATE)  # Measure builds of up to ten million inputs (hours)
	@$(BIN)/python benchmarks/scale.py

soak: $(VENV)/.installed-dev-$(STATE)  ## Tests: Run all tests with more kill times, sizes and examples (hours)
	@SHARDMILL_SOAK=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --timeout 4000

mutants: $(VENV)/.installed-dev-$(STATE)  # Report small changes of the code that no quick test notices (hours; resumable): RESULTS=FILE [LIKE=FILE]
	@$(BIN)/python tests/_tools/mutants.py $(RESULTS) $(if $(LIKE),--like=$(LIKE))

LOCK = pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --constraint constraints.txt
constraints: $(BIN)/python  ## Releases: Update constraints.txt, and the hashes of the images' dependencies (needs uv)
	@$(UV) pip compile --quiet --universal --python-version 3.10 --fork-strategy requires-python \
	  --all-extras --upgrade --no-annotate --no-header setup.py --output-file constraints.txt
	@echo setuptools | $(UV) $(LOCK) --extra dataflow setup.py - --output-file deploy/dataflow/requirements-dataflow.txt
	@echo setuptools | $(UV) $(LOCK) --extra dataflow --extra tft setup.py - --output-file deploy/dataflow/requirements-dataflow-tft.txt
	@$(UV) pip compile --quiet --universal --python-version 3.11 --no-deps --generate-hashes --no-annotate --no-header \
	  --no-emit-index-url deploy/airflow/requirements.txt --output-file deploy/airflow/requirements.txt

clean:  ## Every day: Delete the environment and all build output
	@rm -rf $(VENV) build dist *.egg-info $(DEMO) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
