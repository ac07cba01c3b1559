# NVIDIA's own stack beside ours, on a real cluster; see docs/time-to-gpu.md.
#
#	make e2e-nvidia                              both come up, step by step
#	make e2e-nvidia E2E_ARGS='-run /gpuready'    ours alone
#	make e2e-nvidia E2E_ARGS="-run TestMigrate"  nodes handed over from NVIDIA's to ours, and back
#
#	make provision-compare COMPARE_SAMPLES=30                        both in alternation, by gpu-provision
#	make provision-compare COMPARE_STATUS=2s COMPARE_REGISTRY=public COMPARE_OUT=folder
#	make provision-compare COMPARE_TEST=reset COMPARE_DRIVER=5s,176s the ClusterPolicy is applied again; a precompiled driver and one that is built
#
#	make plugin-compare                                              NVIDIA's device plugin beside ours, without a cluster; 15 minutes
#	make plugin-compare PLUGIN_COMPARE=LoseAGPU                      a part; the others are ReadAWrongConfiguration and PreferDevices
#
# COMPARE_TEST      fresh: each sample on a node as bare as the first; reset: the ClusterPolicy is applied again, three
#                   times before the other stack's turn
# COMPARE_STATUS    the kubelet's tick
# COMPARE_DRIVER    how long the driver takes to load; with two values both are measured
# COMPARE_HANDLER   yes: the bare node has the stack's containerd handler already
# COMPARE_REGISTRY  empty: images are on the node; public: from a registry behind 80 ms and 200 Mbit/s; cluster: from a nearby one
# COMPARE_CLUSTER   name of the cluster; another one for a second measurement at the same time
# COMPARE_OUT       where reports, comparisons and pages go
COMPARE_SAMPLES  ?= 30
COMPARE_TEST     ?= fresh
COMPARE_STATUS   ?= 10s
COMPARE_DRIVER   ?= 5s
COMPARE_HANDLER  ?=
COMPARE_REGISTRY ?=
COMPARE_CLUSTER  ?= compare
COMPARE_OUT      ?= $(BIN)/provision-compare

PLUGIN_COMPARE   ?=

.PHONY: e2e-nvidia plugin-compare provision-compare
e2e-nvidia: packages-cluster images chart $(BIN)/kubectl-gpu $(BIN)/nvidia-driver $(BIN)/tools/helm ## bring a node up with NVIDIA's operator, plugin and toolkit, and with ours
	GPUREADY_E2E_NVIDIA='$(abspath $(BIN))' $(GO) test -count=1 -v -timeout 30m $(E2E_ARGS) ./test/nvidia

provision-compare: packages-cluster images chart $(BIN)/gpu-provision $(BIN)/nvidia-driver $(BIN)/tools/helm ## measure NVIDIA's stack and ours in alternation; four minutes a pair of samples
	GPUREADY_E2E_NVIDIA='$(abspath $(BIN))' GPUREADY_COMPARE='$(COMPARE_SAMPLES)' GPUREADY_COMPARE_TEST='$(COMPARE_TEST)' \
	GPUREADY_COMPARE_STATUS='$(COMPARE_STATUS)' GPUREADY_COMPARE_DRIVER='$(COMPARE_DRIVER)' GPUREADY_COMPARE_HANDLER='$(COMPARE_HANDLER)' \
	GPUREADY_COMPARE_REGISTRY='$(COMPARE_REGISTRY)' GPUREADY_COMPARE_CLUSTER='$(COMPARE_CLUSTER)' GPUREADY_MEASUREMENTS='$(abspath $(COMPARE_OUT))' \
	$(GO) test -count=1 -v -timeout 10h -run TestCompare ./test/nvidia

$(BIN)/nvidia-driver: $(GO_SOURCES)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o $@ ./test/nvidia/driver

plugin-compare: packages-build $(BIN)/reference/nvidia-device-plugin ## measure NVIDIA's device plugin and ours on a simulated node
	@$(MAKE) --no-print-directory -j2 $(addprefix $(BIN)/,gpu-device-plugin gpusim $(SIMULATOR))
	GPUREADY_REFERENCE='$(abspath $(BIN)/reference/nvidia-device-plugin)' GPUREADY_BIN='$(abspath $(BIN))' \
	$(GO) test -count=1 -v -timeout 1h -parallel 9 -run 'TestPlugins$(PLUGIN_COMPARE)' ./test/nvidia

# The flags are those of test/lab/binaries.
$(BIN)/reference/nvidia-device-plugin: test/lab/binaries/nvidia-plugin/go.mod test/lab/binaries/nvidia-plugin/go.sum
	@echo '  build $@'
	$(Q)cd $(<D) && version=$$($(GO) list -m -f '{{.Version}}' github.com/NVIDIA/k8s-device-plugin) && \
	GOFLAGS=-buildvcs=false CGO_ENABLED=1 CGO_LDFLAGS_ALLOW='-Wl,--unresolved-symbols=ignore-in-object-files' $(GO) build -trimpath \
	-ldflags "-s -w -X github.com/NVIDIA/k8s-device-plugin/internal/info.version=$$version" \
	-o '$(abspath $@)' github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin
