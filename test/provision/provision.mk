# gpu-provision on a real cluster.
#
#	make provision                            what it measures, and measurements that go wrong
#	make provision E2E_ARGS='-run /Reset'     some of it
.PHONY: provision
provision: e2e-images $(BIN)/gpu-provision ## measure a cluster's time to GPU, and have measurements go wrong
	@began=$$(date +%s); GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 20m $(E2E_ARGS) ./test/provision && \
	echo "provision: passed in $$(($$(date +%s) - began)) s"
