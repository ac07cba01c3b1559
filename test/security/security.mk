# Attacks of a hostile image author, pod author or neighbour on a real node.
#
#	make e2e-security                                   all of it
#	make e2e-security E2E_ARGS='-run Security/metrics'  some of it
.PHONY: e2e-security
e2e-security: e2e-images ## attack a real node as the author of a pod, of an image, and with an agent's token
	@began=$$(date +%s); GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 20m $(E2E_ARGS) ./test/security && \
	echo "e2e-security: passed in $$(($$(date +%s) - began)) s"
