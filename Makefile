# The minor version of Kubernetes that is built in, and that of the control plane in embedded clusters. go.mod and
# hack/tools/kubernetes have the modules of 1.35, hack/kubernetes those of the others.
KUBERNETES_MINOR ?= 1.35
CONTROL_PLANE_MINOR ?= $(KUBERNETES_MINOR)

# Everything that is built here is built with the same flags, so that the Go build cache serves all of it. hack/go-in.sh
# runs go in other modules, without the module file of this one.
export GOFLAGS = -trimpath -buildvcs=false
export CGO_ENABLED = 0
BIN = bin
TOOLS = bin/tools
ifneq ($(KUBERNETES_MINOR),1.35)
$(if $(wildcard hack/kubernetes/$(KUBERNETES_MINOR).mod),,$(error KUBERNETES_MINOR: there is no hack/kubernetes/$(KUBERNETES_MINOR).mod: set it to 1.35 or to a minor version that has such a file))
GOFLAGS += -modfile=$(CURDIR)/hack/kubernetes/$(KUBERNETES_MINOR).mod -tags=kubernetes_$(subst .,_,$(KUBERNETES_MINOR))
endif
ifneq ($(CONTROL_PLANE_MINOR),1.35)
$(if $(wildcard hack/kubernetes/control-plane-$(CONTROL_PLANE_MINOR).mod),,$(error CONTROL_PLANE_MINOR: there is no hack/kubernetes/control-plane-$(CONTROL_PLANE_MINOR).mod: set it to 1.35 or to a minor version that has such a file))
TOOLS = bin/tools-$(CONTROL_PLANE_MINOR)
endif
ifneq ($(KUBERNETES_MINOR) $(CONTROL_PLANE_MINOR),1.35 1.35)
BIN = bin/$(KUBERNETES_MINOR)-on-$(CONTROL_PLANE_MINOR)
endif

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
KUBERNETES := $(shell GOFLAGS="$(GOFLAGS)" go list -m -f '{{.Version}}' k8s.io/kubernetes 2>/dev/null)
V := k8s.io/component-base/version
LDFLAGS = -s -w -X $(V).gitVersion=$(KUBERNETES) -X poolpriority.dev/scheduler/pkg/version.ours=$(VERSION)


.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: build-demo ## Build the scheduler, the controller, kubectl pools and the embedded cluster's command into bin/
	@hack/build.sh $(BIN)/kubectl-pools -ldflags "$(LDFLAGS)" ./cmd/kubectl-pools

.PHONY: build-demo
build-demo:
	@hack/build.sh $(BIN)/pool-priority-scheduler -ldflags "$(LDFLAGS)" ./cmd/scheduler
	@hack/build.sh $(BIN)/pool-priority-controller -ldflags "$(LDFLAGS)" ./cmd/controller
	@hack/build.sh $(BIN)/devcluster -ldflags "-s -w" ./cmd/devcluster

IMAGE ?= pool-priority-scheduler
PLATFORMS ?= amd64 arm64

IMAGE_OUT ?= bin/image
PLUGIN_OUT ?= bin/plugin

.PHONY: image-binaries
image-binaries: ## Build what the image holds, for each of PLATFORMS (amd64 arm64), into IMAGE_OUT (bin/image)
	@for arch in $(PLATFORMS); do \
	  GOARCH=$$arch GOOS=linux hack/step.sh "image binaries, $$arch" go build -ldflags "$(LDFLAGS)" -o $(IMAGE_OUT)/linux/$$arch/pool-priority-scheduler ./cmd/scheduler && \
	  GOARCH=$$arch GOOS=linux hack/step.sh "image binaries, controller, $$arch" go build -ldflags "$(LDFLAGS)" -o $(IMAGE_OUT)/linux/$$arch/pool-priority-controller ./cmd/controller || exit 1; \
	done

.PHONY: plugin-binaries
plugin-binaries:
	@for os in linux darwin; do for arch in amd64 arm64; do \
	  GOARCH=$$arch GOOS=$$os hack/step.sh "kubectl-pools, $$os, $$arch" go build -ldflags "$(LDFLAGS)" -o $(PLUGIN_OUT)/$$os/$$arch/kubectl-pools ./cmd/kubectl-pools || exit 1; \
	done; done

.PHONY: image
image: PLATFORMS = $(shell go env GOARCH)
image: image-binaries ## Build the image IMAGE:VERSION for this machine's architecture; needs Docker
	docker build --build-arg TARGETARCH=$(PLATFORMS) -t $(IMAGE):$(VERSION) .

.PHONY: image-push
image-push: reproducible image-binaries ## Build the image IMAGE:VERSION for all PLATFORMS and push it; needs Docker with buildx
	docker buildx build --platform $(shell echo $(PLATFORMS) | sed 's/[^ ]*/linux\/&/g; s/ /,/g') -t $(IMAGE):$(VERSION) --push .

.PHONY: reproducible
reproducible: ## Build the image's binaries once more, from a clone in another directory, and compare them byte for byte
	@hack/step.sh "reproducible binaries" hack/verify-reproducible.sh

OUT ?= bin/release
RELEASE ?= bin/release

.PHONY: release
release: ## Write all that a release consists of into OUT (bin/release); needs VERSION=v1.2.3, REGISTRY and DOWNLOADS
	@VERSION="$(if $(filter file,$(origin VERSION)),,$(VERSION))" REGISTRY="$(REGISTRY)" DOWNLOADS="$(DOWNLOADS)" \
	  OUT="$(OUT)" SIGNING_KEY="$(SIGNING_KEY)" SOURCE="$(SOURCE)" ALLOW_DIRTY="$(ALLOW_DIRTY)" hack/release.sh

.PHONY: release-check
release-check: ## Verify the release in RELEASE (bin/release), with PUBLIC_KEY=cosign.pub its signatures, and with NEXT=DIR install it on kind, upgrade to the release in DIR and roll back
	@hack/go-in.sh hack/tools/release build -o $(CURDIR)/bin/release-tool .
	@bin/release-tool check -key "$(PUBLIC_KEY)" $(RELEASE)
ifneq ($(NEXT),)
	@bin/release-tool check -key "$(PUBLIC_KEY)" $(NEXT)
	@$(MAKE) --no-print-directory default-minor tools helm
	@hack/kind/engine.sh hack/kind/lane.sh $(KIND_NODE_IMAGE) local/node:$(KUBERNETES) $(RELEASE) $(NEXT)
endif

.PHONY: tools
tools: ## Build what the embedded cluster runs (etcd, Kubernetes, KWOK) from Go modules
	@hack/build-tools.sh $(TOOLS) $(CONTROL_PLANE_MINOR)
	@[ $(BIN) = bin ] || { mkdir -p $(BIN) && ln -sfn ../../$(TOOLS) $(BIN)/tools; }

.PHONY: demo
demo: ## Play the experiments on an embedded cluster, judge the order, and draw it: .devcluster/demo.svg
	@echo "make demo: 10 to 15 minutes the first time on 2 cores, as it compiles Kubernetes; half a minute after that"
	@$(MAKE) --no-print-directory tools build-demo
	@$(BIN)/devcluster demo --bin $(BIN)

.PHONY: demo-story
demo-story: tools build-demo ## Play a spike without and with headroom, Overflow and Return, print what each saved, and draw it: .devcluster/story.svg
	@$(BIN)/devcluster demo --story --bin $(BIN)

.PHONY: test
test: test-unit test-story ## Run the unit tests of every package, and the main story on the embedded cluster: at most 12 minutes

.PHONY: test-all
test-all: ## Run all that a change must pass (.ci/run): make verify, all tests, the race detector, kind; needs root or KIND_NODE_IMAGE
	@.ci/run

.PHONY: prometheus
prometheus:
	@hack/step.sh "Prometheus from Debian, to test the alerts" hack/debian-prometheus.sh $(TOOLS)

.PHONY: test-unit
test-unit: prometheus ## Run the tests beside the code, and those of the model, the alerts and the documentation
	@hack/step.sh "unit tests" hack/go-test.sh -timeout 20m -skip '^TestStrictOrder$$' ./cmd/... ./pkg/... ./test/devcluster/... ./test/model ./test/alerts ./test/markdown ./test/docs ./test/imports
	@hack/step.sh "foresight, 20 histories" hack/go-test.sh -timeout 20m ./test/foresight -histories 20
	@hack/step.sh "ServiceMonitors and rules against the Prometheus operator's types" hack/go-in.sh test/monitoring test -count=1 .
	@hack/step.sh "a small release" hack/go-in.sh hack/tools/release test ./...

.PHONY: test-race
test-race: ## Run the tests of concurrent packages with the race detector, and a tenth of the random placements
	@CGO_ENABLED=1 hack/step.sh "race detector" hack/go-test.sh -race -short -timeout 60m ./pkg/poolpriority/... ./pkg/gatekeeper/... ./pkg/lease ./pkg/returner ./pkg/controller/... ./pkg/gate ./pkg/nodegroups/...

.PHONY: test-strictness
test-strictness: ## Compare the order of 105,000 random placements with brute force
	@hack/step.sh "strictness" hack/go-test.sh -timeout 60m -run '^TestStrictOrder$$' ./pkg/poolpriority

.PHONY: test-foresight
test-foresight: ## Play the gate in 200 random histories of a virtual cluster, and judge each burst by what would have happened
	@hack/step.sh "foresight" hack/go-test.sh -timeout 20m ./test/foresight

INTEGRATION = -count=1 -timeout 30m -parallel 3 ./test/integration -bin $(CURDIR)/$(BIN) -logs $(CURDIR)/.devcluster/logs
# The tests on embedded clusters that make test plays; make test-rest plays the others.
MAIN_STORY = ^(TestDemo|TestDocs|TestPoolsFillInOrder|TestStaticAndFixedPools|TestScaleFromZero|TestPinnedPods|TestArticles|TestBudgetAndWaitLimit|TestQuota|TestLost|TestReturn|TestScaleInOrder|TestObserve|TestPools|TestPublishedState|TestInstall|TestChart)$$

.PHONY: test-story
test-story: tools build helm ## Play the main story on embedded clusters: order, burst, budget, refusal, return, scale-in, the demo, what is installed
	@hack/step.sh "the main story" hack/go-test.sh $(INTEGRATION) -run '$(MAIN_STORY)'

.PHONY: test-rest
test-rest: tools build helm karpenter prometheus ## Run the tests on embedded clusters that make test leaves out, the real Karpenter's too
	@hack/step.sh "the other integration tests" hack/go-test.sh $(INTEGRATION) -skip '$(MAIN_STORY)'

# The tests on embedded clusters that test-versions plays for each pair of a build and a control plane.
CORE = ^(TestDemo|TestPoolsFillInOrder|TestScaleFromZero|TestBudgetAndWaitLimit|TestQuota|TestKilledAtEveryStep|TestFrozenWhileItPreempts|TestReturn|TestScaleInOrder|TestPools|TestInstall|TestChart|TestChartBuilds|TestDRA)$$

.PHONY: test-core
test-core: tools build helm ## Run the tests of order, gate, fail-over and installation on embedded clusters
	@hack/step.sh "the core, build for $(KUBERNETES_MINOR) on Kubernetes $(CONTROL_PLANE_MINOR)" hack/go-test.sh $(INTEGRATION) -run '$(CORE)'

.PHONY: test-versions
test-versions: ## Test the build for each released minor version of Kubernetes, on that version and on the next
	@hack/test-versions.sh

.PHONY: test-newest
test-newest: ## Compile everything with the newest minor version of Kubernetes, and test what depends on it most
	@$(MAKE) --no-print-directory test-newest-minor KUBERNETES_MINOR=$(lastword $(sort $(patsubst hack/kubernetes/%.mod,%,$(wildcard hack/kubernetes/1.*.mod))))

.PHONY: test-newest-minor
test-newest-minor:
	@hack/step.sh "go vet with Kubernetes $(KUBERNETES_MINOR)" go vet ./...
	@hack/step.sh "the plugin with Kubernetes $(KUBERNETES_MINOR)" hack/go-test.sh -skip '^TestStrictOrder$$' ./pkg/compat/... ./pkg/poolpriority/... ./pkg/returner ./pkg/alike ./pkg/version

.PHONY: test-karpenter
test-karpenter: tools build karpenter ## Run the tests against the real Karpenter, which is built from Go modules
	@hack/step.sh "Karpenter tests" hack/go-test.sh $(INTEGRATION) -run '^TestKarpenter'

.PHONY: helm
helm:
	@hack/step.sh "build Helm, to test the chart" hack/go-in.sh hack/tools/helm build -ldflags "-s -w" -o $(CURDIR)/$(TOOLS)/ tool

.PHONY: karpenter
karpenter: default-minor
	@hack/step.sh "build Karpenter" hack/build-karpenter.sh $(TOOLS)
	@hack/step.sh "NodePools against Karpenter's types" hack/go-in.sh test/karpenter test -count=1 .

# The image of Kubernetes 1.35 that the pinned version of kind is released with.
KIND_NODE_IMAGE ?= kindest/node:v1.35.8@sha256:07b2536e30b803ed61d1677a79df6115f798ce64c80f9e22f6ed45afd09323c0

.PHONY: kind-node-image-name
kind-node-image-name:
	@echo $(KIND_NODE_IMAGE)

# What is built for the default minor version of Kubernetes only.
.PHONY: default-minor
default-minor:
	@[ $(BIN) = bin ] || { echo "KUBERNETES_MINOR and CONTROL_PLANE_MINOR have no effect on this target: leave them out" >&2; exit 1; }

.PHONY: test-e2e
test-e2e: default-minor tools build helm ## Run the end-to-end tests on a kind cluster of KIND_NODE_IMAGE; needs Docker
	@hack/kind/engine.sh hack/kind/lane.sh $(KIND_NODE_IMAGE) local/node:$(KUBERNETES)

.PHONY: kind-node-image
kind-node-image: default-minor ## Build the node image local/node:KUBERNETES from Debian and Go modules, where no image registry is; needs root
	@hack/kind/engine.sh hack/kind/node-image.sh local/node:$(KUBERNETES)

.PHONY: test-long
test-long: export SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
test-long: tools build karpenter ## Run what is too long for each run: a million placements, long histories, a random cluster of 10,000 pods (docs/development.md)
	@echo "The random tests draw from SEED=$$SEED"
	@hack/step.sh "a million placements" hack/go-test.sh -count=1 -timeout 3h ./pkg/poolpriority -run '^TestStrictOrder$$' -placements 600000
	@hack/step.sh "a million decisions" hack/go-test.sh -count=1 -timeout 3h ./test/model -decisions 1000000 -published 100000
	@hack/step.sh "overflow: 100,000 queues" hack/go-test.sh -count=1 ./pkg/gate -run '^TestOverflowPacking$$' -packings 100000
	@hack/step.sh "5,000 histories" hack/go-test.sh -count=1 -timeout 3h ./test/foresight -histories 5000
	@hack/step.sh "10,000 pods on a random cluster" hack/go-test.sh -count=1 -timeout 3h ./test/integration -run '^TestRandomCluster$$' -pods 10000 -bin $(CURDIR)/$(BIN) -logs $(CURDIR)/.devcluster/logs
	@hack/step.sh "five minutes of churn with Karpenter" hack/go-test.sh -count=1 -timeout 15m ./test/integration -run '^TestKarpenterChurn$$' -churn 5m -bin $(CURDIR)/$(BIN) -logs $(CURDIR)/.devcluster/logs
	@hack/step.sh "ten minutes without Karpenter" hack/go-test.sh -count=1 -timeout 40m ./test/integration -run '^TestKarpenterSilence' -silent 10m -bin $(CURDIR)/$(BIN) -logs $(CURDIR)/.devcluster/logs
	@while read -r minor; do $(MAKE) --no-print-directory test-upstream KUBERNETES_MINOR=$$minor < /dev/null || exit 1; done < hack/kubernetes/released

.PHONY: flakes
flakes: ## Repeat make test-unit 20 times and the main story 10 times, half of the runs beside busy CPUs, and print each test that failed
	@hack/flakes.sh 20 10

.PHONY: test-upstream
test-upstream: tools ## Run Kubernetes' own tests of the scheduler with the plugin in it, once with pools of no node and once with one of all
	@hack/step.sh "Kubernetes $(KUBERNETES_MINOR)'s tests of the scheduler" hack/test-upstream.sh $(KUBERNETES_MINOR) -tools $(CURDIR)/$(TOOLS)

.PHONY: bench
bench: tools build ## Measure a scheduling cycle against other profiles and beside 10,000 pods that wait, how fast the gate acts, what binding costs, throughput, and memory
	@go run ./test/perf
	@go test -count=1 ./pkg/poolpriority -run '^$$' -bench 'BesideHeld|RolloutCycle|Alike|ManyKinds|BoundPodUpdate' -benchtime 1x
	@go test -count=1 ./pkg/gatekeeper -run '^$$' -bench Sync
	@go test -count=1 -timeout 30m ./test/integration -run '^$$' -bench . -skip 'Memory|Throughput|Load|Soak' -benchtime 3x -bin $(CURDIR)/$(BIN)
	@go test -count=1 -timeout 2h ./test/integration -run '^$$' -bench 'Memory|Throughput' -benchtime 1x -bin $(CURDIR)/$(BIN)
	@go test -count=1 -timeout 2h ./test/integration -run '^$$' -bench Load -benchtime 1x -bin $(CURDIR)/$(BIN) -nodes 500 -waiting 4000 -updates 100 -lasts 3m

DURATION ?= 1h

.PHONY: soak
soak: tools build ## Kill a random component every 30 s under load for DURATION (1h), check the placements, and draw memory and latency: .devcluster/soak.svg
	@go test -count=1 -timeout 0 ./test/integration -run '^$$' -bench Soak -benchtime 1x -bin $(CURDIR)/$(BIN) -soak $(DURATION) -nodes 200 -waiting 1000 -updates 50 -stream 5 -come 1 -logs $(CURDIR)/.devcluster/logs

.PHONY: fuzz
fuzz: ## Fuzz each outside format, and what pods may look like, for a minute
	go test ./pkg/nodegroups/clusterautoscaler -run '^$$' -fuzz FuzzParse -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/capacitybuffer -run '^$$' -fuzz FuzzParse -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/refusal -run '^$$' -fuzz FuzzClassify -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/published -run '^$$' -fuzz '^FuzzDecode$$' -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/published -run '^$$' -fuzz FuzzDecodeView -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/lint -run '^$$' -fuzz FuzzParse -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/gate -run '^$$' -fuzz FuzzEligibility -fuzztime 1m -fuzzminimizetime 10x
	hack/go-in.sh test/karpenter test . -run '^$$' -fuzz FuzzNodePool -fuzztime 1m -fuzzminimizetime 10x
	hack/go-in.sh test/karpenter test . -run '^$$' -fuzz FuzzNodeClaim -fuzztime 1m -fuzzminimizetime 10x

# How many code lines there may be: what is there, plus what an issue grants. Any other addition takes as many out.
MAX_LINES_SHIPPED = 22598
MAX_LINES_OTHER = 47280

.PHONY: lines
lines: ## Print the code lines of what ships, and of all other Go
	@hack/lines.sh

.PHONY: verify
verify: ## Check format, vet, lint, modules, workflows, generated and copied files
	@hack/step.sh "gofmt" hack/verify-gofmt.sh
	@hack/step.sh "go mod tidy" hack/verify-modules.sh
	@hack/step.sh "go vet" go vet ./...
	@hack/step.sh "go vet of test/karpenter" hack/go-in.sh test/karpenter vet .
	@hack/step.sh "go vet of test/monitoring" hack/go-in.sh test/monitoring vet .
	@hack/step.sh "go vet of test/upstream" hack/go-in.sh test/upstream vet ./...
	@hack/step.sh "go vet of hack/tools/kind" hack/go-in.sh hack/tools/kind vet ./...
	@hack/step.sh "go vet of hack/tools/release" hack/go-in.sh hack/tools/release vet ./...
	@hack/step.sh "build lint tools" hack/go-in.sh hack/tools/lint build -o $(CURDIR)/bin/lint/ tool
	@hack/step.sh "staticcheck" bin/lint/staticcheck ./...
	@hack/step.sh "workflows" bin/lint/actionlint -shellcheck= -pyflakes= $(wildcard .github/workflows/*.yaml)
	@hack/step.sh "imports" go test ./test/imports
	@hack/step.sh "retired words" go test ./test/docs -run '^TestRetiredWords$$'
	@hack/step.sh "code lines" hack/lines.sh $(MAX_LINES_SHIPPED) $(MAX_LINES_OTHER)
	@hack/step.sh "generated and copied files" hack/verify-generated.sh

VULNDB ?=

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities in the code that the commands of each released build call, in VULNDB or the official database
	@hack/step.sh "build lint tools" hack/go-in.sh hack/tools/lint build -o $(CURDIR)/bin/lint/ tool
	@while read -r minor; do $(MAKE) --no-print-directory vulncheck-minor KUBERNETES_MINOR=$$minor < /dev/null || exit 1; done < hack/kubernetes/released

.PHONY: vulncheck-minor
vulncheck-minor:
	@hack/step.sh "govulncheck, build for $(KUBERNETES_MINOR)" bin/lint/govulncheck $(if $(VULNDB),-db $(VULNDB)) $(filter -tags=%,$(GOFLAGS)) ./cmd/...

.PHONY: generate
generate: ## Write the generated and copied files anew
	@hack/go-in.sh hack/tools/lint build -o $(CURDIR)/bin/lint/ tool
	@hack/update-generated.sh

.PHONY: clean
clean: ## Remove what was built and the clusters' files
	rm -rf bin .devcluster
