# make help lists the targets.
BIN     ?= bin
CC      := gcc
GO      := go
LDFLAGS := -s -w

# Every go command below has these flags, so that each package is compiled once for programs and tests. With
# netgo and osusergo the standard library is the same with and without cgo.
TAGS    := -tags=grpcnotrace,netgo,osusergo
override GOFLAGS := $(if $(filter command,$(origin GOFLAGS)),$(GOFLAGS),$(shell $(GO) env GOFLAGS)) -buildvcs=false $(TAGS) -trimpath -gcflags=all=-dwarf=false
export GOFLAGS

# Compiling takes a tenth less processor time without collecting garbage below this size.
NOGC    := GOGC=off GOMEMLIMIT=512MiB
GOBUILD  = $(NOGC) $(GO) build
CFLAGS  := -std=c11 -g -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread -I simulator/state
CFLAGS  += -ffile-prefix-map=$(CURDIR)=. # the same bytes from any directory
OPTIMISE := -O2
CLANG   := clang-14

# Without this the race detector makes each program sleep for a second at its end.
export GORACE := atexit_sleep_ms=0

# nvml.h comes from the go-nvml module, with which clients are compiled: from the module
# cache or a vendor folder, downloaded if necessary. It is looked up once, on first use.
NVML_DIR = $(eval NVML_DIR := $$(shell $(GO) list -e -find -f '{{.Dir}}' github.com/NVIDIA/go-nvml/pkg/nvml))$(or $(NVML_DIR),$(error go list does not find github.com/NVIDIA/go-nvml; run go mod download))
NVML_CFLAGS = -I '$(NVML_DIR)' -ffile-prefix-map='$(NVML_DIR)'=go-nvml

# go-nvml calls functions that nvml.h has marked as deprecated.
export CGO_CFLAGS := -g -O2 -Wno-deprecated-declarations

# V=1 shows the build commands.
ifndef V
Q := @
endif

# RACE=1 builds with the race detector, for make test-race.
ifdef RACE
RACEFLAG := -race
LDFLAGS  :=
endif

# Programs that need cgo (NVML), and those that must not have it.
CGO_PROGRAMS    := gpu-device-plugin gpu-toolkit gpu-validator gpusim
SAMPLES         := vectoradd reduction gemm bandwidth memtest compute
STATIC_PROGRAMS := gpu-cdi-hook gpu-dra-driver gpu-driver gpu-oci-runtime gpu-operator gpu-provision kubectl-gpu $(SAMPLES)
DOCUMENTED      := gpu-device-plugin gpu-dra-driver gpu-driver gpu-operator gpu-provision gpu-toolkit gpu-validator gpusim kubectl-gpu
SIMULATOR       := lib/libnvidia-ml.so lib/libcuda.so lib/nvidia-smi lib/nvidia-cuda-mps-control

dir_gpu-device-plugin := deviceplugin
dir_gpu-toolkit       := toolkit
dir_gpu-validator     := validator
dir_gpusim            := simulator/gpusim
dir_gpu-cdi-hook      := toolkit/hook
dir_gpu-dra-driver    := dra
dir_gpu-driver        := driver
dir_gpu-oci-runtime   := toolkit/ociruntime
dir_gpu-operator      := operator
dir_gpu-provision     := provision
dir_kubectl-gpu       := operator/kubectl
$(foreach sample,$(SAMPLES),$(eval dir_$(sample) := cuda-samples/$(sample)))

ALL        := $(addprefix $(BIN)/,$(CGO_PROGRAMS) $(STATIC_PROGRAMS) $(SIMULATOR))
GO_SOURCES := $(shell find . \( -name bin -o -name '.?*' \) -prune -o -type f ! -name '*_test.go' \
	\( -name '*.go' -o -name '*.ptx' -o -name '*.yaml' -o -name '*.tmpl' -o -name go.mod -o -name go.sum -o -name VERSION \) -print)
C_HEADERS  := $(wildcard simulator/*/*.h)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-11s %s\n", $$1, $$2 }'

.PHONY: build
build: packages-build $(ALL) ## build all programs and the simulator's libraries into bin/

# Two go commands side by side would compile what their programs share twice, so that is compiled first.
COMPILE = $(NOGC) $(GO) list -export -deps -f '{{""}}'

.PHONY: compile
compile: | packages-build
	@CGO_ENABLED=1 $(COMPILE) $(RACEFLAG) $(foreach name,$(CGO_PROGRAMS),./$(dir_$(name))) >/dev/null
	@CGO_ENABLED=0 $(COMPILE) $(foreach name,$(STATIC_PROGRAMS),./$(dir_$(name))) >/dev/null

ifneq ($(filter build,$(MAKECMDGOALS)),)
$(addprefix $(BIN)/,$(CGO_PROGRAMS) $(STATIC_PROGRAMS) demo): | compile
endif

# Their tests need clusters, virtual machines or downloads, and skip themselves in make test: targets of their
# own run them. They are the largest test programs.
SUITES := $(addprefix test/,autoscaler dashboard dra driver e2e notebook nvidia nvidia/driver operator provision python \
	quickstart release security skew toolkit validator vmnode)

# Packages that start no goroutine, their tests included (docs/packages_test.go). The race detector has nothing
# to find in their tests, which take up to eight times as long with it.
SEQUENTIAL := operator/api/v1 operator/api/v1/schematest operator/api/v1alpha1 operator/state operator/status \
	operator/upgrade dra/inventory toolkit/ociruntime/request

# without lists the packages that are not in a list.
without = $$($(GO) list ./... | grep -vxF "$$(printf 'github.com/gpuready/gpuready/%s\n' $(1))")

# Their tests wait longest, for times that the programs take by themselves. They start first, so that the others
# run meanwhile.
WAITING := deviceplugin toolkit validator internal/gpu/nvml dra

# make check vets the tests, too. Most tests wait for processes: three programs a processor keep it busy.
TEST = $(NOGC) $(GO) test -exec='env -u GOGC -u GOMEMLIMIT' -vet=off -ldflags='-s -w' -count=1 -p $(shell expr 3 \* $$(nproc)) -parallel 8

.PHONY: test
test: packages-build packages-containers packages-test ## run the tests that need no cluster, those with random inputs for a shorter time
	@$(MAKE) --no-print-directory -j2 build $(BIN)/demo
	GPUREADY_BIN=$(abspath $(BIN)) $(TEST) -short $(addprefix ./,$(WAITING)) $(call without,$(SUITES))

.PHONY: test-race
test-race: packages-build packages-containers packages-test ## run them with the race detector and all random inputs, several times as long
	@$(MAKE) --no-print-directory -j2 BIN=bin/race RACE=1 build bin/race/demo
	GPUREADY_BIN=$(CURDIR)/bin/race $(TEST) $(addprefix ./,$(SEQUENTIAL) $(SUITES))
	GPUREADY_BIN=$(CURDIR)/bin/race $(TEST) -race -p 3 $(addprefix ./,$(WAITING)) $(call without,$(SEQUENTIAL) $(SUITES))

.PHONY: demo
demo: packages-build packages-containers ## watch a GPU travel from the driver to a CUDA job
	@CGO_ENABLED=1 $(COMPILE) $(foreach name,$(CGO_PROGRAMS),./$(dir_$(name))) ./test/demo >/dev/null
	@$(MAKE) --no-print-directory -s -j2 $(addprefix $(BIN)/,$(CGO_PROGRAMS) gpu-cdi-hook gpu-oci-runtime vectoradd $(SIMULATOR) demo)
	@$(BIN)/demo $(DEMO_ARGS)

.PHONY: bench
bench: packages-build packages-containers packages-cluster packages-machine ## measure: medians, minima, p99
	@$(MAKE) --no-print-directory -j2 build $(BIN)/demo
	GPUREADY_BIN=$(CURDIR)/$(BIN) $(GO) run ./test/bench $(BENCH_ARGS)

.PHONY: test-gpu
test-gpu: packages-build ## run the component tests against this machine's own GPU; skipped, by name, where there is none
	@$(MAKE) --no-print-directory -j2 build $(BIN)/demo
	GPUREADY_BIN=$(abspath $(BIN)) GPUREADY_MEASUREMENTS=$(CURDIR)/docs/measurements $(GO) test -count=1 -v -run '^TestGPU' ./test/gpu/... ./dra

.PHONY: check
check: packages-generate lint ## lint, manifests, charts and the bundle, licences, generated files
	@$(MAKE) --no-print-directory operands
	cd .ci/schema && $(GO) vet ./... && $(GO) run . ../../deployments/static ../../bin/operands && $(GO) test ./...
	cd .ci/helm && $(GO) vet ./... && $(GO) test -count=1 ./...
	cd .ci/olm && $(GO) vet ./... && $(GO) test -count=1 ./... && $(GO) run . generate && $(GO) run . validate
	cd .ci/licences && $(GO) vet ./... && $(GO) test ./...
	cd .ci/promql && $(GO) vet . && $(GO) test -count=1 .
	cd .ci/changelog && $(GO) vet . && $(GO) test . && $(GO) run . check '$(VERSION)'
	cd .ci/workflows && $(GO) vet . && $(GO) test -count=1 .
	@$(MAKE) --no-print-directory generate
	@git diff --exit-code -- $(GENERATED) || { echo 'check: generated files differ from what is checked in; commit the above'; exit 1; }
	@test -z "$$(git ls-files -o --exclude-standard -- $(GENERATED))" || \
		{ git ls-files -o --exclude-standard -- $(GENERATED); echo 'check: generated files are not checked in; commit the above'; exit 1; }

.PHONY: lint
lint: packages-build packages-check $(BIN)/tools/golangci-lint $(BIN)/tools/govulncheck ## formatting, vet, lint, vulnerabilities; it writes nothing
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo 'lint: run gofmt -w on:'; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(BIN)/tools/golangci-lint run --build-tags grpcnotrace ./...
	git ls-files -z '*.sh' .ci/run | xargs -0 shellcheck
	.ci/vulnerabilities.sh $(BIN)/tools/govulncheck
	$(GO) mod tidy -diff

GENERATED := simulator/state/state_generated.go simulator/nvml/entry.c simulator/nvml/names.h simulator/cuda/stubs.c cuda-samples docs/reasons.md docs/config.schema.json docs/install.md docs/support.md deployments/monitoring/dashboard.json $(wildcard deployments/static/*.yaml deployments/static/examples/clusterpolicy*.yaml) deployments/helm operator/api/v1/zz_generated.deepcopy.go operator/api/v1alpha1/zz_generated.deepcopy.go THIRD_PARTY.md

.PHONY: generate
generate: packages-generate ## regenerate what is generated and checked in
	$(GO) generate ./operator/api/... ./deployments # the definitions, in bin/crds, and the chart's constants
	cd .ci/helm && $(GO) run . generate
	$(GO) generate ./...
	CLANG=$(CLANG) cuda-samples/generate.sh
	@$(MAKE) --no-print-directory third-party

.PHONY: set-version
set-version: ## change the version of this tree: make set-version VERSION=v1.2.3
	@internal/version/set.sh '$(VERSION)'
	@$(MAKE) --no-print-directory generate VERSION=

.PHONY: third-party
third-party: packages-build ## list the linked modules and their licences in THIRD_PARTY.md; fails if one is not permitted
	cd .ci/licences && $(GO) run . ../.. $(foreach name,$(CGO_PROGRAMS) $(STATIC_PROGRAMS),./$(dir_$(name)))

.PHONY: changelog
changelog: packages-build ## make CHANGELOG.md of the entries in changelog/
	cd .ci/changelog && $(GO) run . generate

.PHONY: chart
chart: packages-build ## pack the Helm chart, deployments/helm/gpuready, into bin/charts/
	cd .ci/helm && $(GO) run . package

.PHONY: bundle
bundle: packages-build ## make the bundle for the Operator Lifecycle Manager, in bin/bundle/
	cd .ci/olm && $(GO) run . generate

.PHONY: operands
operands: packages-build ## render what the operator deploys, for each case of its golden files, in bin/operands/
	@rm -rf bin/operands && mkdir -p bin/operands
	$(GO) test -count=1 -run '^TestRenderMatchesGoldenFiles$$' ./operator/state -args -rendered='$(CURDIR)/bin/operands'

.PHONY: man
man: packages-build ## write the programs' manual pages, made of their --help, to bin/man/
	@$(MAKE) --no-print-directory -j2 $(addprefix $(BIN)/,$(DOCUMENTED))
	@mkdir -p $(BIN)/man
	@for program in $(DOCUMENTED); do $(BIN)/$$program __man >$(BIN)/man/$$program.1 || exit 1; done
	@ls $(BIN)/man/*.1

.PHONY: krew
krew: packages-build $(foreach platform,linux-amd64 linux-arm64 darwin-amd64 darwin-arm64,bin/krew/$(platform)/kubectl-gpu) ## pack kubectl-gpu and write its krew manifest, in bin/krew/
	@rm -f bin/krew/*.tar.gz
	@deployments/krew/archive.sh '$(VERSION)' bin/krew $(KREW_URI)
	@ls bin/krew/*.tar.gz bin/krew/gpu.yaml

bin/krew/%/kubectl-gpu: $(GO_SOURCES) bin/.version
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 GOOS=$(word 1,$(subst -, ,$*)) GOARCH=$(word 2,$(subst -, ,$*)) $(GOBUILD) -ldflags "$(LDFLAGS) $(X)" -o $@ ./$(dir_kubectl-gpu)

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

# --- programs ---

$(ALL) $(BIN)/demo: | packages-build

$(BIN)/.version: FORCE
	@mkdir -p $(@D)
	@v="$$(git describe --always --exclude='*' --abbrev=12 --dirty 2>/dev/null) $$(git log -1 --format='%cs' 2>/dev/null)"; \
	[ "$$(cat $@ 2>/dev/null)" = "$$v" ] || echo "$$v" >$@

# Race builds are not stamped: tests need not wait for a new commit's link.
ifndef RACE
STAMP = $(BIN)/.version
X     = $$(awk '{ p = "-X github.com/gpuready/gpuready/internal/version."; print p "commit=" $$1, p "date=" $$2 }' $(BIN)/.version)
endif

$(addprefix $(BIN)/,$(CGO_PROGRAMS)): $(BIN)/%: $(GO_SOURCES) $(STAMP)
	@echo '  build $@'
	$(Q)CGO_ENABLED=1 $(GOBUILD) $(RACEFLAG) -ldflags "$(LDFLAGS) $(X)" -o $@ ./$(dir_$*)

$(addprefix $(BIN)/,$(STATIC_PROGRAMS)): $(BIN)/%: $(GO_SOURCES) $(STAMP)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GOBUILD) -ldflags "$(LDFLAGS) $(X)" -o $@ ./$(dir_$*)

$(BIN)/demo: $(GO_SOURCES) $(STAMP)
	@echo '  build $@'
	$(Q)CGO_ENABLED=1 $(GOBUILD) -ldflags "$(LDFLAGS) $(X)" -o $@ ./test/demo

# --- the simulator's libraries and tools ---

# One object a source, so that all cores compile.
OBJECTS  = $(patsubst simulator/%.c,$(BIN)/obj/%.o,$(wildcard $(1)/*.c) simulator/state/reader.c)
ML_OBJ   := $(call OBJECTS,simulator/nvml)
CUDA_OBJ := $(call OBJECTS,simulator/cuda)

$(BIN)/obj/nvml/%.o $(BIN)/lib/nvidia-smi: CFLAGS += $(NVML_CFLAGS)
$(BIN)/obj/cuda/%.o: OPTIMISE := -O3 -ffp-contract=off

# go.mod determines the version of nvml.h.
$(BIN)/obj/%.o: simulator/%.c $(C_HEADERS) go.mod | packages-build
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS) $(OPTIMISE) -c $< -o $@

$(BIN)/lib/libnvidia-ml.so: $(ML_OBJ)
$(BIN)/lib/libcuda.so: $(CUDA_OBJ)
$(BIN)/lib/libnvidia-ml.so $(BIN)/lib/libcuda.so: $(BIN)/lib/%.so:
	@mkdir -p $(@D)
	@echo '  build $@'
	$(Q)$(CC) -shared -pthread $^ -o $@ -Wl,-soname,$*.so.1 -Wl,-z,now -ldl -lm

$(BIN)/lib/nvidia-cuda-mps-control: OPTIMISE += -static
$(BIN)/lib/nvidia-smi $(BIN)/lib/nvidia-cuda-mps-control: $(BIN)/lib/%: simulator/smi/%.c $(C_HEADERS) go.mod
	@mkdir -p $(@D)
	@echo '  build $@'
	$(Q)$(CC) $(CFLAGS) $(OPTIMISE) $< -o $@ -ldl

# --- images, the cluster and the soak, beside what they build ---

include deployments/images/images.mk deployments/release/release.mk $(sort $(wildcard test/*/*.mk test/lab/*/*.mk))

# --- tools ---

$(BIN)/tools/golangci-lint: .ci/tools/go.mod | packages-check
	@echo '  build $@ (minutes, the first time)'
	$(Q)$(GOBUILD) -modfile=.ci/tools/go.mod -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(BIN)/tools/govulncheck: .ci/tools/go.mod
	@echo '  build $@'
	$(Q)$(GOBUILD) -modfile=.ci/tools/go.mod -o $@ golang.org/x/vuln/cmd/govulncheck

# It builds images of precompiled drivers, for the Makefiles in driver/precompiled.
$(BIN)/tools/precompiled: $(GO_SOURCES)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GOBUILD) -o $@ ./driver/precompiled

# The end-to-end tests install with it, and it packages the chart.
$(BIN)/tools/helm: .ci/helm/go.mod
	@echo '  build $@ (minutes, the first time)'
	$(Q)cd .ci/helm && CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o $(abspath $@) helm.sh/helm/v4/cmd/helm

.PHONY: packages-%
packages-%:
	@.ci/packages.sh modules $*

.PHONY: FORCE
FORCE:
