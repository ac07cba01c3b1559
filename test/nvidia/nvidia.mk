# NVIDIA's own stack beside ours, on a real cluster; see docs/nvidia-stack.md.
#
#	make e2e-nvidia                              both come up, step by step
#	make e2e-nvidia E2E_ARGS='-run /gpuready'    ours alone
.PHONY: e2e-nvidia
e2e-nvidia: packages-cluster images chart $(BIN)/nvidia-driver $(BIN)/tools/helm ## bring a node up with NVIDIA's operator, plugin and toolkit, and with ours
	GPUREADY_E2E_NVIDIA='$(abspath $(BIN))' $(GO) test $(TAGS) -count=1 -v -timeout 30m $(E2E_ARGS) ./test/nvidia

$(BIN)/nvidia-driver: $(GO_SOURCES)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w' -o $@ ./test/nvidia/driver
