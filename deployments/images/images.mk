# Container images, one for each DaemonSet: an archive, which `ctr images import`
# and `docker load` take, and an SBOM each.
#
#	make images                              bin/images/<name>.tar and .spdx.json
#	make images VERSION=v1.2.3               another tag, for a rolling update
#	make images IMAGE_BASE=default           on the base that the Containerfiles name
#	make images ARCH=arm64                   cross-built, in bin/arm64/images
#	make images IMAGE_ARGS='toolkit -o json' one of them; see bin/tools/images --help
VERSION          ?= $(file <internal/version/VERSION)
IMAGE_NAMES      := cuda-samples device-plugin dra-driver driver driver-simulator operator toolkit validator
IMAGE_REPOSITORY ?= docker.io/gpuready

# If empty, the base is assembled from packages of this machine's distribution.
IMAGE_BASE ?=

IMAGE_TOOL := bin/tools/images
NATIVE     := $(subst aarch64,arm64,$(subst x86_64,amd64,$(shell uname -m)))
ARCH       ?= $(NATIVE)
REVISION   ?= $(shell git describe --always --exclude='*' --abbrev=40 --dirty 2>/dev/null || echo unknown)

# Programs for another architecture are in a separate folder. The C compiler is
# the distribution's, as is the base.
ifeq ($(ARCH),$(NATIVE))
IMAGE_BIN   := $(BIN)
IMAGE_BUILD :=
else
IMAGE_BIN   := $(BIN)/$(ARCH)
IMAGE_BUILD := GOOS=linux GOARCH=$(ARCH) CC=$(subst amd64,x86_64,$(subst arm64,aarch64,$(ARCH)))-linux-gnu-gcc
endif
IMAGE_DIR ?= $(IMAGE_BIN)/images

.PHONY: images
images: packages-build packages-images $(IMAGE_TOOL) ## build the container images, an archive and an SBOM each, into bin/images/
ifneq ($(IMAGE_BUILD),)
	@.ci/packages.sh images-$(ARCH)
endif
	@$(MAKE) --no-print-directory -j2 BIN='$(IMAGE_BIN)' $(IMAGE_BUILD) build
	@$(IMAGE_TOOL) --bin '$(IMAGE_BIN)' --out '$(IMAGE_DIR)' --arch '$(ARCH)' --version '$(VERSION)' --revision '$(REVISION)' \
		--repository '$(IMAGE_REPOSITORY)' --base '$(IMAGE_BASE)' $(IMAGE_ARGS)

# Not stamped with the commit, since images depend on it.
$(IMAGE_TOOL): $(shell find deployments/images/build internal/cmdline internal/config internal/suggest internal/version -name '*.go' ! -name '*_test.go') internal/version/VERSION go.mod go.sum | packages-images
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 GOOS= GOARCH= $(GOBUILD) -ldflags '-s -w' -o $@ ./deployments/images/build
