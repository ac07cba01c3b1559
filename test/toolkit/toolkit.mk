# The scenarios on real container runtimes: containerd 1.6, 1.7 and 2, Docker, Podman.
#
#	make e2e-toolkit                                 all of them
#	make e2e-toolkit E2E_ARGS='-run Docker'          some of them
#	make e2e-toolkit-kills                           kills and power losses, all instead of a few (10 minutes)
.PHONY: e2e-toolkit e2e-toolkit-kills
e2e-toolkit: packages-build packages-containers packages-cluster packages-runtimes ## play the container toolkit's scenarios on real container runtimes
	@$(MAKE) --no-print-directory -j2 build
	@began=$$(date +%s); GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 20m -parallel 2 $(E2E_ARGS) ./test/lab/node/... ./test/toolkit && \
	echo "e2e-toolkit: passed in $$(($$(date +%s) - began)) s"

e2e-toolkit-kills: packages-build packages-containers packages-cluster packages-runtimes ## kill gpu-toolkit, and lose power, at hundreds of moments on real container runtimes
	@$(MAKE) --no-print-directory -j2 build
	@began=$$(date +%s); GPUREADY_LONG=1 GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 40m -parallel 2 -run 'Survives' ./test/toolkit && \
	echo "e2e-toolkit-kills: passed in $$(($$(date +%s) - began)) s"
