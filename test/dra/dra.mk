# The DRA driver on a real cluster.
#
#	make e2e-dra                              claims, taints, double use, a driver that is killed
#	make e2e-dra E2E_ARGS='-run /claim'       some of it
#	GPUREADY_LONG=1 make e2e-dra              one tenant crashes for 10 minutes beside others
.PHONY: e2e-dra
e2e-dra: e2e-images ## claims, taints and a killed driver on a real cluster, with gpu-dra-driver
	@began=$$(date +%s); GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout $(if $(GPUREADY_LONG),40m,20m) $(E2E_ARGS) ./test/dra && \
	echo "e2e-dra: passed in $$(($$(date +%s) - began)) s"

.PHONY: bench-dra
bench-dra: e2e-images ## claims a second on 500 nodes of 8 GPUs, claim to running pod, writes of 5,000 nodes' drivers
	@GPUREADY_E2E='$(CURDIR)/$(BIN)' GPUREADY_BENCH=1 $(GO) test -count=1 -v -timeout 40m -run 'TestScheduling|TestClaimToRunning|TestFleetWrites' $(E2E_ARGS) ./test/dra

# Random kills of driver and kubelet under claims that come and go, more of them than in CI:
#
#	make e2e-dra-kills KILLS=50
.PHONY: e2e-dra-kills
e2e-dra-kills: e2e-images ## kill driver and kubelet at random times while claims come and go
	GPUREADY_KILLS=$(or $(KILLS),50) GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 60m -run 'TestDRA/(publish_8|killed$$)' ./test/dra

# The oracle of the switch between device plugin and DRA, for longer than in CI:
#
#	make e2e-dra-switches SWITCHES=100
SWITCHES ?= 100
.PHONY: e2e-dra-switches
e2e-dra-switches: e2e-images ## random switches of a node between device plugin and DRA, under a load of pods
	GPUREADY_SWITCHES=$(SWITCHES) GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 120m -run '^TestSwitch$$' ./test/dra
