# The scenarios on a real cluster.
#
#	make e2e                                 all of them
#	make e2e E2E_ARGS='-run TestRoad'        some of them
E2E_ARGS ?=
NEXT     := v0.1.1

.PHONY: e2e e2e-timeline
e2e: packages-cluster images ## play the scenarios on a real cluster, with the images and manifests of this tree
	@$(MAKE) --no-print-directory images VERSION=$(NEXT) IMAGE_DIR='$(BIN)/images-next' IMAGE_ARGS='device-plugin toolkit validator driver-simulator' >/dev/null
	GPUREADY_E2E='$(CURDIR)/$(BIN)' GPUREADY_E2E_LONG='$(GPUREADY_E2E_LONG)' $(GO) test $(TAGS) -count=1 -timeout 40m -parallel 4 -v ./test/e2e $(E2E_ARGS)

e2e-timeline: ## measure from driver ready to a CUDA job in a pod, at the kubelet's default 10 s too
	@$(MAKE) --no-print-directory e2e GPUREADY_E2E_LONG=1 E2E_ARGS='-run TestTimeline'
