# A release: images for amd64 and arm64, chart, OLM bundle and catalog, kubectl-gpu, manifests.
# docs/release.md is the guide.
#
#	make release                                             into a registry on this machine
#	make release REGISTRY=registry.example.com/gpuready      build and push
#	make release-build REGISTRY=…                            build alone, into bin/release/VERSION
#	make release-push REGISTRY=… PUSH_ARGS=--dry-run         list what would be pushed
#	make release RELEASE_ARGS=--allow-dirty                  an experiment with changes
#	make release-sign REGISTRY=registry.example.com/gpuready RELEASE_KEY=cosign.key
#	make release-sign REGISTRY=registry.example.com/gpuready RELEASE_SIGN=--keyless
#	make verify-release REGISTRY=registry.example.com/gpuready RELEASE_PUBLIC_KEY=cosign.pub
#	make verify-release-signed                               what is signed alone; nothing of the release runs
#	make verify-release-olm                                  installed by the Operator Lifecycle Manager, from its catalog
#
# Without REGISTRY a release stays on this machine: a registry runs while it is needed, with its
# storage in bin/release/registry, and the key is made for it.
RELEASE_TOOL := bin/tools/release
RELEASE_DIR  ?= bin/release/$(VERSION)
REGISTRY     ?=
ifeq ($(REGISTRY),)
RELEASE_LISTEN     ?= localhost:5005
RELEASE_REGISTRY   := $(RELEASE_LISTEN)/gpuready
RELEASE_KEY        := bin/release/key/cosign.key
RELEASE_PUBLIC_KEY := bin/release/key/cosign.pub
# It stands before a command that needs the registry.
WITH_REGISTRY       = $(RELEASE_TOOL) registry --storage bin/release/registry --listen $(RELEASE_LISTEN) --
WITH_REGISTRY_NEEDS = bin/tools/registry $(RELEASE_PUBLIC_KEY)
export COSIGN_PASSWORD ?=
else
RELEASE_REGISTRY   := $(REGISTRY)
RELEASE_KEY        ?=
RELEASE_PUBLIC_KEY ?=
endif
RELEASE_SIGN   ?= --key '$(RELEASE_KEY)'
RELEASE_VERIFY ?= --key '$(RELEASE_PUBLIC_KEY)'

RELEASE_ARGS   ?=
PUSH_ARGS      ?=
RELEASE_IMAGES := bin/release/images
# From here krew fetches the archives.
KREW_URI       ?= https://github.com/gpuready/gpuready/releases/download/$(VERSION)

# Every image and file has the time of the commit.
RELEASE_BUILD = $(RELEASE_TOOL) build --version '$(VERSION)' --registry '$(RELEASE_REGISTRY)' --dir '$(RELEASE_DIR)' --images '$(RELEASE_IMAGES)' $(RELEASE_ARGS)
RELEASE_TIME  = $$(git log -1 --format=%ct)

.PHONY: release release-build release-push
release: ## build a release, for amd64 and arm64, push and sign it: make release REGISTRY=host/path RELEASE_KEY=cosign.key
	@[ "$(strip $(RELEASE_SIGN))" != "--key ''" ] || { echo "release: say how to sign: RELEASE_KEY=cosign.key, or RELEASE_SIGN=--keyless" >&2; exit 2; }
	@$(MAKE) --no-print-directory release-build
	@$(MAKE) --no-print-directory -j2 bin/tools/cosign $(filter bin/tools/%,$(WITH_REGISTRY_NEEDS))
	@$(MAKE) --no-print-directory release-push
	@$(MAKE) --no-print-directory release-sign

release-build: $(RELEASE_TOOL)
	@$(RELEASE_BUILD) --check
	@# Side by side, those that compile the least in common.
	@$(MAKE) --no-print-directory -j2 bin/tools/chart $(addprefix bin/catalog/arm64/,opm grpc_health_probe) bin/tools/bundle $(addprefix bin/catalog/amd64/,opm grpc_health_probe)
	@for arch in amd64 arm64; do \
		SOURCE_DATE_EPOCH=$(RELEASE_TIME) $(MAKE) --no-print-directory images ARCH=$$arch IMAGE_DIR='$(RELEASE_IMAGES)'/$$arch IMAGE_BASE= IMAGE_ARGS= || exit 1; \
	done
	@$(MAKE) --no-print-directory -j2 krew KREW_URI='$(KREW_URI)'
	@$(RELEASE_BUILD)

release-push: $(RELEASE_TOOL) $(WITH_REGISTRY_NEEDS)
	@$(WITH_REGISTRY) $(RELEASE_TOOL) push --dir '$(RELEASE_DIR)' $(PUSH_ARGS)

# They have the chart and the bundle in their own modules, with helm's and OLM's code.
bin/tools/chart: $(wildcard .ci/helm/*.go) .ci/helm/go.mod
bin/tools/bundle: $(wildcard .ci/olm/*.go) .ci/olm/go.mod
bin/tools/chart bin/tools/bundle: bin/tools/%: | packages-build
	@echo '  build $@ (minutes, the first time)'
	$(Q)cd .ci/$(if $(filter chart,$*),helm,olm) && CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o $(abspath $@) .

# The programs in the image of a catalog.
CATALOG_TAGS := grpcnotrace,containers_image_openpgp,containers_image_docker_daemon_stub,containers_image_storage_stub,exclude_graphdriver_btrfs,exclude_graphdriver_devicemapper
program_opm               := github.com/operator-framework/operator-registry/cmd/opm
program_grpc_health_probe := github.com/grpc-ecosystem/grpc-health-probe

bin/catalog/%: .ci/catalog/go.mod | packages-build
	@echo '  build $@ (minutes, the first time)'
	@mkdir -p $(@D)
	$(Q)cd .ci/catalog && CGO_ENABLED=0 GOOS=linux GOARCH=$(patsubst %/,%,$(dir $*)) $(GOBUILD) -tags=$(CATALOG_TAGS) -ldflags '-s -w' -o $(abspath $@) $(program_$(notdir $*))

# Not stamped with the commit: what it makes depends on the release alone.
$(RELEASE_TOOL): $(shell find deployments/release deployments/images/build/rootfs internal/cmdline internal/config internal/inotify internal/program internal/suggest internal/version -name '*.go' ! -name '*_test.go') internal/version/VERSION go.mod go.sum | packages-build
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 GOOS= GOARCH= $(GOBUILD) -ldflags '-s -w' -o $@ ./deployments/release

# Programs of others, pinned by modules of their own: what signs releases, and a registry for those
# that stay on this machine.
$(BIN)/tools/cosign: .ci/cosign/go.mod
	@echo '  build $@ (minutes, the first time)'
	$(Q)cd .ci/cosign && CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o $(abspath $@) github.com/sigstore/cosign/v3/cmd/cosign

$(BIN)/tools/registry: .ci/registry/go.mod .ci/registry/main.go
	@echo '  build $@ (minutes, the first time)'
	$(Q)cd .ci/registry && CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o $(abspath $@) .

bin/release/key/cosign.pub: | bin/tools/cosign
	@mkdir -p $(@D)
	@# cosign asks before it overwrites a key, so a run that was killed leaves none, or the whole one.
	@cd $(@D) && { [ -e cosign.key ] || { rm -rf new && mkdir -m 700 new && (cd new && $(abspath bin/tools/cosign) generate-key-pair) && mv new/cosign.key . && rm -r new; }; } && \
		$(abspath bin/tools/cosign) public-key --key cosign.key >cosign.pub.new && mv cosign.pub.new cosign.pub

.PHONY: release-sign verify-release verify-release-olm verify-release-served verify-release-signed verify-release-signed-served
release-sign: $(RELEASE_TOOL) bin/tools/cosign $(WITH_REGISTRY_NEEDS) ## sign a release that was pushed, attach provenance and SBOMs, and publish it
	@$(WITH_REGISTRY) $(RELEASE_TOOL) sign --cosign bin/tools/cosign --dir '$(RELEASE_DIR)' $(RELEASE_SIGN)

# What was pulled runs on a cluster whose namespace admits nothing else, and in an emulator of arm64.
verify-release: packages-build packages-cluster packages-release $(RELEASE_TOOL) $(addprefix bin/tools/,cosign helm) $(WITH_REGISTRY_NEEDS) ## verify a published release as a stranger would, and run it: chart, CUDA job, kubectl gpu, arm64
	@$(GO) run ./test/lab/cluster/tool build # not within the tests' time limit
	@$(WITH_REGISTRY) $(MAKE) --no-print-directory verify-release-served

verify-release-signed: $(RELEASE_TOOL) bin/tools/cosign $(WITH_REGISTRY_NEEDS) ## verify a published release as a stranger would, and run nothing of it
	@$(WITH_REGISTRY) $(MAKE) --no-print-directory verify-release-signed-served

verify-release-signed-served:
	@rm -rf bin/release/verified
	$(RELEASE_TOOL) verify --cosign bin/tools/cosign --registry '$(RELEASE_REGISTRY)' --version '$(VERSION)' $(RELEASE_VERIFY) --save bin/release/verified

verify-release-served: verify-release-signed-served
	GPUREADY_E2E='$(CURDIR)/bin' GPUREADY_RELEASE_REGISTRY='$(RELEASE_REGISTRY)' GPUREADY_RELEASE_DIR='$(CURDIR)/bin/release/verified' \
		$(GO) test -count=1 -v -timeout 20m -run '^Test(VerifiedReleaseRuns|ARM64ImagesRun)$$' $(E2E_ARGS) ./test/release

verify-release-olm: ## the same, but the real Operator Lifecycle Manager installs it from its catalog
	@$(MAKE) --no-print-directory verify-release E2E_ARGS='-run TestOLMInstallsTheRelease $(E2E_ARGS)'

# For clusters without the internet: lists of the release's images, and one archive of them.
MIRROR_ARGS ?=

.PHONY: mirror
mirror: $(RELEASE_TOOL) ## write lists of a release's images, and one archive for clusters without the internet, in bin/mirror/
	@$(RELEASE_TOOL) mirror --dir '$(RELEASE_DIR)' --to bin/mirror $(MIRROR_ARGS)
