# What measures and draws. (The Makefile includes this file.)

.PHONY: bench
bench: tools build ## Measure a scheduling cycle against other profiles and beside 10,000 pods that wait, how fast the gate acts, and memory
	@go run ./test/perf
	@go test -count=1 ./pkg/poolpriority -run '^$$' -bench 'BesideHeld|RolloutCycle|ManyKinds|BoundPodUpdate' -benchtime 1x
	@go test -count=1 -timeout 30m ./test/integration -run '^$$' -bench . -skip 'Memory|Load|Soak|Replay' -benchtime 3x -bin $(CURDIR)/$(BIN)
	@go test -count=1 -timeout 2h ./test/integration -run '^$$' -bench Memory -benchtime 1x -bin $(CURDIR)/$(BIN)
	@go test -count=1 -timeout 2h ./test/integration -run '^$$' -bench Load -benchtime 1x -bin $(CURDIR)/$(BIN) -nodes 500 -waiting 4000 -updates 100 -lasts 3m

# ROWS is a regular expression for workloads of scheduler_perf or their labels. Without it, those of
# test/upstream/rows.yaml are measured. PAIRS is how many pairs of runs there may be. PROFILE=1 writes CPU profiles to
# bin/upstream/logs/bench, where the data of all runs is.
ROWS ?=
PAIRS ?= 5

.PHONY: bench-upstream
bench-upstream: tools #- Run Kubernetes' own benchmark of the scheduler without and with the plugin, in turn: chosen workloads (7 to 12 hours), those that ROWS matches, or all (ROWS=performance)
	@hack/test-upstream.sh $(KUBERNETES_MINOR) -tools $(CURDIR)/$(TOOLS) -bench -rows '$(ROWS)' -pairs $(PAIRS) $(if $(PROFILE),-profile)

TRACE ?=

.PHONY: replay
replay: ## Play a day of pods (TRACE=FILE, or one of its own) in virtual time with five strategies, print what each costs, and draw it: .devcluster/replay.svg
	@go test -count=1 -timeout 1h -v ./test/foresight -run '^TestReplay$$' -args $(if $(TRACE),-pods $(abspath $(TRACE))) -replay $(CURDIR)/.devcluster

.PHONY: replay-check
replay-check: tools build #- Play the steepest twenty minutes of make replay on an embedded cluster at ten times the speed, and compare the core-hours
	@go test -count=1 -v ./test/integration -run '^$$' -bench '^BenchmarkReplay$$' -benchtime 1x -bin $(CURDIR)/$(BIN) -replay $(CURDIR)/.devcluster/replay.json

DURATION ?= 1h

.PHONY: soak
soak: tools build #- Kill a random component every 30 s under load for DURATION (1h), check the placements, and draw memory and latency: .devcluster/soak.svg
	@go test -count=1 -timeout 0 ./test/integration -run '^$$' -bench Soak -benchtime 1x -bin $(CURDIR)/$(BIN) -soak $(DURATION) -nodes 200 -waiting 1000 -updates 50 -stream 5 -come 1 -logs $(CURDIR)/.devcluster/logs
