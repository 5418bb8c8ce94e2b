# The tests beyond make test. (The Makefile includes this file.)

.PHONY: test-race
test-race: #- Run the tests of concurrent packages with the race detector, and a tenth of the random placements
	@CGO_ENABLED=1 hack/step.sh "race detector" hack/go-test.sh -race -short -timeout 60m ./pkg/poolpriority/... ./pkg/gatekeeper/... ./pkg/lease ./pkg/returner ./pkg/controller/... ./pkg/gate ./pkg/nodegroups/...

.PHONY: test-strictness
test-strictness: #- Compare the order of 105,000 random placements with brute force
	@hack/step.sh "strictness" hack/go-test.sh -timeout 60m -run '^TestStrictOrder$$' ./pkg/poolpriority

.PHONY: test-foresight
test-foresight: #- Play the gate in 200 random histories of a virtual cluster, and judge each burst by what would have happened
	@hack/step.sh "foresight" hack/go-test.sh -timeout 20m ./test/foresight

.PHONY: test-rest
test-rest: tools build helm karpenter prometheus #- Run the tests on embedded clusters that make test leaves out, the real Karpenter's too
	@hack/step.sh "the other integration tests" hack/go-test.sh $(INTEGRATION) -skip '$(MAIN_STORY)'

# The tests on embedded clusters that test-versions plays for each pair of a build and a control plane.
CORE = ^(TestDemo|TestPoolsFillInOrder|TestScaleFromZero|TestBudgetAndWaitLimit|TestQuota|TestKilledAtEveryStep|TestFrozenWhileItPreempts|TestReturn|TestScaleInOrder|TestPools|TestInstall|TestChart|TestChartBuilds|TestDRA|TestGangs)$$

.PHONY: test-core
test-core: tools build helm #- Run the tests of order, gate, fail-over and installation on embedded clusters
	@hack/step.sh "the core, build for $(KUBERNETES_MINOR) on Kubernetes $(CONTROL_PLANE_MINOR)" hack/go-test.sh $(INTEGRATION) -run '$(CORE)'

.PHONY: test-versions
test-versions: #- Test the build for each released minor version of Kubernetes, on that version and on the next
	@hack/test-versions.sh

.PHONY: test-newest
test-newest: #- Compile everything with the newest minor version of Kubernetes, and test what depends on it most
	@$(MAKE) --no-print-directory test-newest-minor KUBERNETES_MINOR=$(lastword $(sort $(patsubst hack/kubernetes/%.mod,%,$(wildcard hack/kubernetes/1.*.mod))))

.PHONY: test-newest-minor
test-newest-minor:
	@hack/step.sh "go vet with Kubernetes $(KUBERNETES_MINOR)" go vet ./...
	@hack/step.sh "the plugin with Kubernetes $(KUBERNETES_MINOR)" hack/go-test.sh -skip '^TestStrictOrder$$' ./pkg/compat/... ./pkg/poolpriority/... ./pkg/returner ./pkg/alike ./pkg/version

.PHONY: test-karpenter
test-karpenter: tools build karpenter #- Run the tests against the real Karpenter, which is built from Go modules
	@hack/step.sh "Karpenter tests" hack/go-test.sh $(INTEGRATION) -run '^TestKarpenter'

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
kind-node-image: default-minor #- Build the node image local/node:KUBERNETES from Debian and Go modules, where no image registry is; needs root
	@hack/kind/engine.sh hack/kind/node-image.sh local/node:$(KUBERNETES)

.PHONY: test-long
test-long: export SEED := $(or $(SEED),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '))
test-long: tools build karpenter #- Run what is too long for each run: a million placements, long histories, a random cluster of 10,000 pods (docs/development.md)
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
flakes: #- Repeat make test-unit 20 times and the main story 10 times, half of the runs beside busy CPUs, and print each test that failed
	@hack/flakes.sh 20 10

.PHONY: test-upstream
test-upstream: tools #- Run Kubernetes' own tests of the scheduler with the plugin in it, once with pools of no node and once with one of all
	@hack/step.sh "Kubernetes $(KUBERNETES_MINOR)'s tests of the scheduler" hack/test-upstream.sh $(KUBERNETES_MINOR) -tools $(CURDIR)/$(TOOLS)

.PHONY: fuzz
fuzz: #- Fuzz each outside format, and what pods may look like, for a minute
	go test ./pkg/nodegroups/clusterautoscaler -run '^$$' -fuzz FuzzParse -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/capacitybuffer -run '^$$' -fuzz FuzzParse -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/refusal -run '^$$' -fuzz FuzzClassify -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/published -run '^$$' -fuzz '^FuzzDecode$$' -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/published -run '^$$' -fuzz FuzzDecodeView -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/lint -run '^$$' -fuzz FuzzParse -fuzztime 1m -fuzzminimizetime 10x
	go test ./pkg/gate -run '^$$' -fuzz FuzzEligibility -fuzztime 1m -fuzzminimizetime 10x
	hack/go-in.sh test/karpenter test . -run '^$$' -fuzz FuzzNodePool -fuzztime 1m -fuzzminimizetime 10x
	hack/go-in.sh test/karpenter test . -run '^$$' -fuzz FuzzNodeClaim -fuzztime 1m -fuzzminimizetime 10x
