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
help: ## Show this help; make help-all shows all targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: help-all
help-all:
	@awk -F ':.*#[#-] ' '/^[a-z0-9-]+:.*#[#-] / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: build-demo ## Build the scheduler, the controller, kubectl pools and the embedded cluster's command into bin/
	@hack/build.sh $(BIN)/kubectl-pools -ldflags "$(LDFLAGS)" ./cmd/kubectl-pools

.PHONY: build-demo
build-demo:
	@hack/build.sh $(BIN)/pool-priority-scheduler -ldflags "$(LDFLAGS)" ./cmd/scheduler
	@hack/build.sh $(BIN)/pool-priority-controller -ldflags "$(LDFLAGS)" ./cmd/controller
	@hack/build.sh $(BIN)/devcluster -ldflags "-s -w" ./cmd/devcluster

.PHONY: tools
tools: #- Build what the embedded cluster runs (etcd, Kubernetes, KWOK) from Go modules
	@hack/build-tools.sh $(TOOLS) $(CONTROL_PLANE_MINOR)
	@[ $(BIN) = bin ] || { mkdir -p $(BIN) && ln -sfn ../../$(TOOLS) $(BIN)/tools; }

.PHONY: demo
demo: ## Play the experiments on an embedded cluster, judge the order, and draw it: .devcluster/demo.svg
	@echo "make demo: 10 to 15 minutes the first time on 2 cores, as it compiles Kubernetes; half a minute after that"
	@$(MAKE) --no-print-directory tools build-demo
	@$(BIN)/devcluster demo --bin $(BIN)

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
	@hack/step.sh "verdicts of make bench-upstream" hack/go-in.sh test/upstream test .
	@hack/step.sh "a small release" hack/go-in.sh hack/tools/release test ./...

INTEGRATION = -count=1 -timeout 30m -parallel 3 ./test/integration -bin $(CURDIR)/$(BIN) -logs $(CURDIR)/.devcluster/logs
# The tests on embedded clusters that make test plays; make test-rest plays the others.
MAIN_STORY = ^(TestDemo|TestDocs|TestPoolsFillInOrder|TestStaticAndFixedPools|TestScaleFromZero|TestPinnedPods|TestArticles|TestBudgetAndWaitLimit|TestQuota|TestLost|TestReturn|TestScaleInOrder|TestObserve|TestPools|TestPublishedState|TestInstall|TestChart)$$

.PHONY: test-story
test-story: tools build helm #- Play the main story on embedded clusters: order, burst, budget, refusal, return, scale-in, the demo, what is installed
	@hack/step.sh "the main story" hack/go-test.sh $(INTEGRATION) -run '$(MAIN_STORY)'

.PHONY: helm
helm:
	@hack/step.sh "build Helm, to test the chart" hack/go-in.sh hack/tools/helm build -ldflags "-s -w" -o $(CURDIR)/$(TOOLS)/ tool

# How many code lines there may be: what is there, plus what an issue grants. Any other addition takes as many out.
MAX_LINES_SHIPPED = 23155
MAX_LINES_OTHER = 48860

.PHONY: lines
lines: #- Print the code lines of what ships, and of all other Go
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

.PHONY: generate
generate: ## Write the generated and copied files anew
	@hack/go-in.sh hack/tools/lint build -o $(CURDIR)/bin/lint/ tool
	@hack/update-generated.sh

.PHONY: clean
clean: ## Remove what was built and the clusters' files
	rm -rf bin .devcluster

include hack/make/*.mk
