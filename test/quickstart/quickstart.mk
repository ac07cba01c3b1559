# The commands of docs/install.md on clusters, as printed and with the published names.
#
#	make e2e-quickstart    prints the time from the first command to the end of a CUDA job
.PHONY: e2e-quickstart
e2e-quickstart: e2e-images chart $(BIN)/tools/helm ## do what docs/install.md says, on real clusters that pull everything from a registry
	@GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 30m $(E2E_ARGS) ./test/quickstart
