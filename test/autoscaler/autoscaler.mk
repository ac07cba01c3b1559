# The real Cluster Autoscaler on a real cluster; see docs/time-to-gpu.md.
#
#	make autoscaler                                        0 to 3 GPU nodes, until Ctrl-C
#	make autoscaler AUTOSCALER_ARGS='--boot-delay 60s'     the same, with drivers that take a minute longer
#	make e2e-autoscaler                                    the scenarios
AUTOSCALER_ARGS ?=

.PHONY: autoscaler e2e-autoscaler
autoscaler: packages-cluster images $(BIN)/autoscaler ## bring up a cluster whose GPU nodes the Cluster Autoscaler adds and removes, until Ctrl-C
	@$(BIN)/autoscaler $(AUTOSCALER_ARGS)

e2e-autoscaler: packages-cluster images ## let the real Cluster Autoscaler add and remove GPU nodes, with the startup taint and without
	GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 30m $(E2E_ARGS) ./test/autoscaler

$(BIN)/autoscaler: $(GO_SOURCES) $(STAMP)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GOBUILD) -ldflags "$(LDFLAGS) $(X)" -o $@ ./test/autoscaler
