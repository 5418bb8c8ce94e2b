# Images, releases, and what belongs to them. (The Makefile includes this file.)

IMAGE ?= pool-priority-scheduler
PLATFORMS ?= amd64 arm64

IMAGE_OUT ?= bin/image
PLUGIN_OUT ?= bin/plugin

.PHONY: image-binaries
image-binaries: #- Build what the image holds, for each of PLATFORMS (amd64 arm64), into IMAGE_OUT (bin/image)
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
reproducible: #- Build the image's binaries once more, from a clone in another directory, and compare them byte for byte
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

VULNDB ?=

.PHONY: vulncheck
vulncheck: #- Look for known vulnerabilities in the code that the commands of each released build call, in VULNDB or the official database
	@hack/step.sh "build lint tools" hack/go-in.sh hack/tools/lint build -o $(CURDIR)/bin/lint/ tool
	@while read -r minor; do $(MAKE) --no-print-directory vulncheck-minor KUBERNETES_MINOR=$$minor < /dev/null || exit 1; done < hack/kubernetes/released

.PHONY: vulncheck-minor
vulncheck-minor:
	@hack/step.sh "govulncheck, build for $(KUBERNETES_MINOR)" bin/lint/govulncheck $(if $(VULNDB),-db $(VULNDB)) $(filter -tags=%,$(GOFLAGS)) ./cmd/...
