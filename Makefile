# agentsafe: build, test, measure. Every target runs on Debian 12 with Go and root; `make deps` brings the rest.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := build

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
BIN     := bin
PROGRAMS := $(patsubst cmd/%/main.go,%,$(wildcard cmd/*/main.go))

# Whatever is slow to make (images, lint, tools) lives here, keyed by content, never in the repository.
export AGENTSAFE_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/agentsafe
# Set, it lets tests run that take minutes.
export AGENTSAFE_TEST_LONG ?=

VERSION := $(shell git describe --tags --always 2>/dev/null || echo unknown)
COMMIT  := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
# Programs that run for milliseconds begin with package entry; without it they are slower and the same.
SHORT := agentsafe containerd-shim-agentsafe-v2
ENTRY := -E github.com/agentsafe/agentsafe/runtime/entry.start
# agentsafe's heap begins where a huge page does (cmd/agentsafe, prefault). Empty where this Go has no such choice.
LOW_HEAP := $(shell GOEXPERIMENT=norandomizedheapbase64 $(GO) env GOEXPERIMENT 2>/dev/null)

GOLANGCI_VERSION := v2.15.0
GOFUMPT_VERSION  := v0.12.0
FUZZTIME  ?= 20s
BENCHARGS ?=
# Two at a time: engines and compilers fill two cores, and the tests measure behaviour, not load.
TESTFLAGS ?= -count=1 -p 2 -timeout 25m
UNIT = $$($(GO) list ./... | grep -v '/integration/')

.PHONY: build install uninstall deps test test-unit test-integration test-long test-race lint fmt bench bench-shim bench-layers bench-evidence bench-network bench-profiles demo fuzz clean vet $(PROGRAMS)

## build: the programs, into bin/
build: $(PROGRAMS)

agentsafe: export GOEXPERIMENT := $(LOW_HEAP)

$(filter-out agentsafe-seccomp,$(PROGRAMS)):
	@mkdir -p $(BIN)/.linked
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(strip $(LDFLAGS) $(if $(filter $@,$(SHORT)),$(ENTRY)))' -o $(BIN)/.linked/$@ ./cmd/$@
	@# A copy lies in the page cache in larger pieces than what the linker has written: it starts 2 ms sooner.
	@cmp -s $(BIN)/.linked/$@ $(BIN)/$@ || { cp $(BIN)/.linked/$@ $(BIN)/.linked/$@.new; mv -f $(BIN)/.linked/$@.new $(BIN)/$@; }

# The one program with cgo: it is linked statically so that it runs where libseccomp is another version or absent.
agentsafe-seccomp:
	@mkdir -p $(BIN)
	@test -e /usr/include/seccomp.h || { echo 'build agentsafe-seccomp: seccomp.h is missing: run `make deps`' >&2; exit 1; }
	CGO_ENABLED=1 $(GO) build -trimpath -tags netgo,osusergo -ldflags '$(LDFLAGS) -linkmode external -extldflags -static' -o $(BIN)/$@ ./cmd/$@

## install: the programs, below PREFIX (DESTDIR is honoured)
install: build
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 0755 $(addprefix $(BIN)/,$(PROGRAMS)) $(DESTDIR)$(PREFIX)/bin
	@# The host's key for evidence (ed25519, root's alone); one that is there is kept. A package's script makes it elsewhere.
	@test -n '$(DESTDIR)' || test "$$(id -u)" != 0 || $(BIN)/agentsafectl audit keygen

uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,$(PROGRAMS))

## deps: Debian packages that building and testing need; silent when all are there
deps:
	@integration/deps.sh

## test: everything that must hold before a change lands
test: deps build vet
	@mkdir -p $(BIN)/.test
	@$(GO) build -o $(BIN)/.test/summary ./integration/summary
	@{ bad=0; $(GO) test -json $(TESTFLAGS) $(UNIT) || bad=1; $(GO) test -json $(TESTFLAGS) ./integration/... || bad=1; exit $$bad; } 2>&1 | $(BIN)/.test/summary | tee $(BIN)/.test/log || { \
	  again=$$(sed -n 's/^fail \([^ ]*\) .*/\1/p' $(BIN)/.test/log | sort -u); \
	  test -n "$$again" || exit 1; \
	  echo "once more, one package at a time, so that what depends on the machine's load is told from what is broken:" $$again; \
	  $(GO) test -json -count=1 -p 1 -timeout 25m $$again 2>&1 | $(BIN)/.test/summary; }

test-unit: build
	$(GO) test $(TESTFLAGS) $(UNIT)

test-integration: deps build
	$(GO) test $(TESTFLAGS) ./integration/...

## test-long: test with what takes minutes (a virtual machine with systemd, soaks), lint, the race detector, a round of fuzzing
test-long: lint
	@integration/deps.sh long
	$(MAKE) test AGENTSAFE_TEST_LONG=1 TESTFLAGS='-count=1 -p 2 -timeout 120m'
	$(GO) test -race $(TESTFLAGS) $(UNIT)
	$(MAKE) test-race
	$(MAKE) fuzz FUZZTIME=5s

## test-race: suites of the runtime on programs that were built with the race detector; a report of it is a failure
RACE_SUITES ?= ./integration/races ./integration/oci ./integration/kernels ./integration/shim ./integration/attacks ./integration/containerd
test-race: deps build
	@rm -rf $(BIN)/race && mkdir -p $(BIN)/race/reports
	CGO_ENABLED=1 $(GO) build -race -o $(BIN)/race/ $(addprefix ./cmd/,$(filter-out agentsafe-seccomp,$(PROGRAMS)))
	@cp $(BIN)/agentsafe-seccomp $(BIN)/race/
	GORACE="log_path=$(CURDIR)/$(BIN)/race/reports/r" AGENTSAFE_TEST_RUNTIME=$(CURDIR)/$(BIN)/race/agentsafe \
	  AGENTSAFE_TEST_SHIM=$(CURDIR)/$(BIN)/race/containerd-shim-agentsafe-v2 $(GO) test $(TESTFLAGS) $(RACE_SUITES)
	@! cat $(BIN)/race/reports/* 2>/dev/null | grep -A60 'DATA RACE'

vet:
	@bad=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$bad" || { echo "gofmt -l: $$bad" >&2; exit 1; }
	$(GO) vet ./...

## lint: golangci-lint, pinned; slow to build, so it is kept in the cache
lint: deps
	@tool=$(AGENTSAFE_CACHE)/tools/golangci-lint-$(GOLANGCI_VERSION)-$$($(GO) env GOVERSION); \
	test -x $$tool/golangci-lint || GOFLAGS=-mod=mod GOBIN=$$tool $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION); \
	$$tool/golangci-lint run ./...

fmt:
	@tool=$(AGENTSAFE_CACHE)/tools/gofumpt-$(GOFUMPT_VERSION)-$$($(GO) env GOVERSION); \
	test -x $$tool/gofumpt || GOFLAGS=-mod=mod GOBIN=$$tool $(GO) install mvdan.cc/gofumpt@$(GOFUMPT_VERSION); \
	$$tool/gofumpt -l -w $$(git ls-files '*.go')

## bench: agentsafe, runc, crun and the physical floor, by turns
bench: deps build
	@mkdir -p $(BIN)/.test
	@$(GO) build -o $(BIN)/.test/bench ./integration/bench
	@$(BIN)/.test/bench -runtime $(CURDIR)/$(BIN)/agentsafe $(BENCHARGS)

## bench-shim: our shim beside runc's with runc and with crun, by turns through one containerd
bench-shim: deps build
	@AGENTSAFE_TEST_RUNTIME=$(CURDIR)/$(BIN)/agentsafe $(GO) test -count=1 -run '^$$' -bench 'Shims|Start' -benchtime $${TURNS:-25}x ./integration/shim

## bench-layers: diff, commit, undo and promotion on growing trees, beside git stash and a full copy; exec and work in overlays
bench-layers: build
	@export AGENTSAFE_BENCH_LAYERS=1 GOROOT=$$($(GO) env GOROOT) GOMODCACHE=$$($(GO) env GOMODCACHE); \
	$(GO) test -count=1 -timeout 60m -v -run 'TestBenchExec|TestBenchWork' ./integration/layers | grep -v '^=== '
	@AGENTSAFE_BENCH_LAYERS="$${AGENTSAFE_BENCH_LAYERS:-1000 10000 100000}" $(GO) test -count=1 -timeout 30m -v -run TestBenchLayers ./fs/layer

## bench-evidence: tool calls beside bare execs through the shim, with and without evidence, a million records verified, the output pump
bench-evidence: build
	@AGENTSAFE_BENCH_EVIDENCE=1 $(GO) test -count=1 -run '^TestBenchEvidence$$' -v ./cmd/agentsafectl | grep -v '^=== '
	@AGENTSAFE_BENCH_EVIDENCE=1 $(GO) test -count=1 -run '^TestBenchToolCall$$' -v ./integration/shim | grep -v '^=== '
	@$(GO) test -run '^$$' -bench '^BenchmarkVerify$$' -benchtime 1000000x ./runtime/audit | grep Benchmark
	@$(GO) test -run '^$$' -bench '^BenchmarkLimit$$' ./runtime/pump | grep Benchmark

## bench-network: the gateway against direct connections and Debian's squid, and what it adds to a start, by turns
bench-network: deps build
	@integration/deps.sh bench
	AGENTSAFE_BENCH_NETWORK=1 $(GO) test -count=1 -run '^TestCost$$' -v ./integration/network

## bench-profiles: what the default policy costs a task beside runc, by turns; and how long the policy takes to compile
bench-profiles: deps build
	$(GO) test -count=1 -run '^$$' -bench 'PlanContainer|Hash|Key|First' ./profiles ./cmd/agentsafe-seccomp
	AGENTSAFE_BENCH_PROFILES=$${AGENTSAFE_BENCH_PROFILES:-7} $(GO) test -count=1 -timeout 60m -run '^TestTaskCost' -v ./integration/realwork

## demo: a real agent task, without an engine
demo: deps build
	@integration/demo.sh

## fuzz: every fuzz target for FUZZTIME
fuzz:
	@for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "fuzz $$p $$f"; out=$$($(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 200x $$p 2>&1) && { tail -n 2 <<<"$$out"; continue; }; \
	    echo "$$out"; grep -q 'context deadline exceeded' <<<"$$out" && ! grep -q 'Failing input written' <<<"$$out" || exit 1; \
	    echo "no input has failed: the fuzzer's own end of time (golang/go#75804, until Go 1.27)"; \
	  done; \
	done

clean:
	rm -rf $(BIN)
