# A release: images for amd64 and arm64, chart, OLM bundle and catalog, kubectl-gpu, manifests.
RELEASE_TOOL := bin/tools/release

# Not stamped with the commit: what it makes depends on the release alone.
$(RELEASE_TOOL): $(shell find deployments/release internal/program internal/config -name '*.go' ! -name '*_test.go') go.mod go.sum | packages-build
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 GOOS= GOARCH= $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $@ ./deployments/release
