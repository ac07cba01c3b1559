# The operator on a real cluster.
#
#	make e2e-operator                                  all scenarios
#	make e2e-operator E2E_ARGS='-run Precompiled'      some of them
#	make e2e-operator-kills KILLS=50                   the operator killed 50 times during an upgrade
#	make e2e-operator-rights                           only its rights, revoked one at a time
#	make e2e-operator-olm                              the bundle, by the Operator Lifecycle Manager
KILLS ?= 4

.PHONY: e2e-operator e2e-operator-kills e2e-operator-rights e2e-operator-olm
e2e-operator: packages-machine e2e-images chart bundle $(BIN)/standin $(BIN)/simkernel $(BIN)/tools/helm $(BIN)/olm/clusterserviceversions.json ## install the operator on a real cluster, and see nodes get their drivers, upgrades, failures and the end
	@began=$$(date +%s); GPUREADY_E2E='$(CURDIR)/$(BIN)' GPUREADY_E2E_KILLS='$(KILLS)' $(GO) test -count=1 -v -timeout 30m -parallel 3 $(E2E_ARGS) ./test/operator && \
	echo "e2e-operator: passed in $$(($$(date +%s) - began)) s"

e2e-operator-kills: ## kill the operator 50 times during upgrades
	@$(MAKE) --no-print-directory e2e-operator KILLS=50 E2E_ARGS='-run TestUpgrade'

e2e-operator-rights: packages-cluster chart $(BIN)/gpu-operator $(BIN)/tools/helm ## take away each right of the operator, one at a time
	@GPUREADY_E2E='$(CURDIR)/$(BIN)' GPUREADY_E2E_RIGHTS=all $(GO) test -count=1 -v -run TestRights ./test/operator

e2e-operator-olm: e2e-images bundle $(BIN)/gpu-operator ## subscribe to the bundle in a catalog of the real Operator Lifecycle Manager
	@GPUREADY_E2E='$(CURDIR)/$(BIN)' GPUREADY_E2E_OLM=1 $(GO) test -count=1 -v -timeout 30m -run TestOLM ./test/operator

$(BIN)/simkernel: $(GO_SOURCES)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o $@ ./test/lab/simkernel

$(BIN)/standin: $(wildcard test/lab/standin/*.go)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GOBUILD) -ldflags '-s -w' -o $@ ./test/lab/standin

# The CRDs of the Operator Lifecycle Manager, from its own module.
$(BIN)/olm/clusterserviceversions.json: .ci/olm/go.mod .ci/olm/main.go | packages-build
	@echo '  build $@'
	@mkdir -p $(@D)
	$(Q)cd .ci/olm && $(GO) run . definition >$(abspath $@).new && mv $(abspath $@).new $(abspath $@)
