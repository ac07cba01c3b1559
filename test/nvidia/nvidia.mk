# NVIDIA's own stack beside ours, on a real cluster; see docs/nvidia-stack.md.
#
#	make e2e-nvidia                              both come up, step by step
#	make e2e-nvidia E2E_ARGS='-run /gpuready'    ours alone
#	make e2e-nvidia E2E_ARGS="-run TestMigrate"  nodes handed over from NVIDIA's to ours, and back
#
#	make provision-compare COMPARE_SAMPLES=30                        both in alternation, by gpu-provision
#	make provision-compare COMPARE_STATUS=2s COMPARE_REGISTRY=public COMPARE_OUT=folder
#	make provision-compare COMPARE_TEST=reset COMPARE_DRIVER=5s,176s the ClusterPolicy is applied again; a precompiled driver and one that is built
COMPARE_SAMPLES  ?= 30
COMPARE_TEST     ?= fresh
COMPARE_STATUS   ?= 10s
COMPARE_DRIVER   ?= 5s
COMPARE_HANDLER  ?=
COMPARE_REGISTRY ?=
COMPARE_CLUSTER  ?= compare
COMPARE_OUT      ?= $(BIN)/provision-compare

.PHONY: e2e-nvidia provision-compare
e2e-nvidia: packages-cluster images chart $(BIN)/kubectl-gpu $(BIN)/nvidia-driver $(BIN)/tools/helm ## bring a node up with NVIDIA's operator, plugin and toolkit, and with ours
	GPUREADY_E2E_NVIDIA='$(abspath $(BIN))' $(GO) test $(TAGS) -count=1 -v -timeout 30m $(E2E_ARGS) ./test/nvidia

provision-compare: packages-cluster images chart $(BIN)/gpu-provision $(BIN)/nvidia-driver $(BIN)/tools/helm ## measure NVIDIA's stack and ours in alternation; four minutes a pair of samples
	GPUREADY_E2E_NVIDIA='$(abspath $(BIN))' GPUREADY_COMPARE='$(COMPARE_SAMPLES)' GPUREADY_COMPARE_TEST='$(COMPARE_TEST)' \
	GPUREADY_COMPARE_STATUS='$(COMPARE_STATUS)' GPUREADY_COMPARE_DRIVER='$(COMPARE_DRIVER)' GPUREADY_COMPARE_HANDLER='$(COMPARE_HANDLER)' \
	GPUREADY_COMPARE_REGISTRY='$(COMPARE_REGISTRY)' GPUREADY_COMPARE_CLUSTER='$(COMPARE_CLUSTER)' GPUREADY_MEASUREMENTS='$(abspath $(COMPARE_OUT))' \
	$(GO) test $(TAGS) -count=1 -v -timeout 10h -run TestCompare ./test/nvidia

$(BIN)/nvidia-driver: $(GO_SOURCES)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $@ ./test/nvidia/driver
