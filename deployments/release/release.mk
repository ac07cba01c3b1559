# A release: images for amd64 and arm64, chart, OLM bundle and catalog, kubectl-gpu, manifests.
RELEASE_TOOL := bin/tools/release

# Not stamped with the commit: what it makes depends on the release alone.
$(RELEASE_TOOL): $(shell find deployments/release internal/program internal/config -name '*.go' ! -name '*_test.go') go.mod go.sum | packages-build
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 GOOS= GOARCH= $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $@ ./deployments/release

# Programs of others, pinned by modules of their own: what signs releases, and a registry for those
# that stay on this machine.
$(BIN)/tools/cosign: .ci/cosign/go.mod
	@echo '  build $@ (minutes, the first time)'
	$(Q)cd .ci/cosign && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $@) github.com/sigstore/cosign/v3/cmd/cosign

$(BIN)/tools/registry: .ci/registry/go.mod
	@echo '  build $@ (minutes, the first time)'
	$(Q)cd .ci/registry && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $(abspath $@) github.com/distribution/distribution/v3/cmd/registry

# For clusters without the internet: lists of the release's images, and one archive of them.
MIRROR_ARGS ?=

.PHONY: mirror
mirror: $(RELEASE_TOOL) ## write lists of a release's images, and one archive for clusters without the internet, in bin/mirror/
	@$(RELEASE_TOOL) mirror --dir 'bin/release/$(VERSION)' --to bin/mirror $(MIRROR_ARGS)
