# The scenarios on real container runtimes: containerd 1.6, 1.7 and 2, Docker, Podman.
#
#	make e2e-toolkit                                 all of them
#	make e2e-toolkit E2E_ARGS='-run Docker'          some of them
.PHONY: e2e-toolkit
e2e-toolkit: packages-build packages-cluster packages-runtimes ## play the container toolkit's scenarios on real container runtimes
	@$(MAKE) --no-print-directory -j2 build
	@began=$$(date +%s); GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test $(TAGS) -count=1 -v -timeout 20m -parallel 2 $(E2E_ARGS) ./test/runtimes/... ./test/toolkit && \
	echo "e2e-toolkit: passed in $$(($$(date +%s) - began)) s"
