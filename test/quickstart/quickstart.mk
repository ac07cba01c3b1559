# The commands of docs/quickstart.md on a cluster, with the published names.
#
#	make e2e-quickstart    prints the time from the first command to the end of a CUDA job
.PHONY: e2e-quickstart
e2e-quickstart: e2e-images chart $(BIN)/tools/helm ## do what docs/quickstart.md says, on a real cluster that pulls everything from a registry
	@GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test $(TAGS) -count=1 -v -timeout 30m $(E2E_ARGS) ./test/quickstart
