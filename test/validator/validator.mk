# The validator on a real node: layers broken in realistic ways, and repaired.
#
#	make e2e-validator                                  all of them
#	make e2e-validator E2E_ARGS='-run /module'          some of them
.PHONY: e2e-validator
e2e-validator: e2e-images ## break the layers of a real node, each in its ways, and see the reason and the recovery
	@began=$$(date +%s); GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 20m $(E2E_ARGS) ./test/validator && \
	echo "e2e-validator: passed in $$(($$(date +%s) - began)) s"
