# A whole node in a virtual machine, from a bare kernel to a CUDA job.
#
#	make e2e-node
.PHONY: e2e-node
e2e-node: packages-build packages-machine packages-cluster images ## boot a node in QEMU that joins a control plane: from a bare kernel to a CUDA job
	@began=$$(date +%s); GPUREADY_MACHINE=1 GPUREADY_BIN='$(CURDIR)/$(BIN)' GPUREADY_E2E='$(CURDIR)/$(BIN)' \
	$(GO) test -count=1 -v -timeout 60m $(E2E_ARGS) ./test/vmnode && \
	echo "e2e-node: passed in $$(($$(date +%s) - began)) s"
