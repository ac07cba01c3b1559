# The scenarios on real kernels in QEMU.
#
#	make e2e-driver                                    all of them
#	make e2e-driver E2E_ARGS='-run SecureBoot'         some of them
#	make e2e-driver-real                               NVIDIA's own modules, from Debian's non-free
.PHONY: e2e-driver
e2e-driver: packages-build packages-images packages-machine ## drive real kernels in QEMU: modules are really loaded, refused and unloaded
	@$(MAKE) --no-print-directory $(BIN)/gpu-driver $(BIN)/gpu-cdi-hook
	@began=$$(date +%s); GPUREADY_MACHINE=1 GPUREADY_BIN=$(CURDIR)/$(BIN) \
	$(GO) test -count=1 -v -timeout 20m -parallel 2 -p 1 $(E2E_ARGS) ./test/lab/vm/... ./test/driver/... && \
	echo "e2e-driver: passed in $$(($$(date +%s) - began)) s"

# It fetches and builds NVIDIA's own sources, under NVIDIA's licence: no other target does.
.PHONY: e2e-driver-real
e2e-driver-real: packages-build packages-machine packages-containers
	@$(MAKE) --no-print-directory $(addprefix $(BIN)/,gpu-driver gpu-toolkit gpu-cdi-hook vectoradd)
	@began=$$(date +%s); GPUREADY_MACHINE=1 GPUREADY_REAL_DRIVER=1 GPUREADY_BIN=$(CURDIR)/$(BIN) \
	$(GO) test -count=1 -v -timeout 60m -p 1 -run TestReal $(E2E_ARGS) ./test/driver ./test/toolkit ./driver/build/output && \
	echo "e2e-driver-real: passed in $$(($$(date +%s) - began)) s"
