# Third-party CUDA programs on the simulator: Numba and PyCUDA, as packaged by Debian.
#
#	make e2e-python                                 all of them (a minute; the first time fetches 230 MB)
#	make e2e-python E2E_ARGS='-run Numba'           some of them
#
# They compile with NVIDIA's tools, under NVIDIA's licence: no other target needs those.
.PHONY: e2e-python
e2e-python: packages-build packages-runtimes ## run Numba's and PyCUDA's kernels on the simulated GPU (fetches parts of the CUDA toolkit)
	@$(MAKE) --no-print-directory $(addprefix $(BIN)/,gpusim $(SIMULATOR))
	@began=$$(date +%s); GPUREADY_PYTHON=1 GPUREADY_BIN=$(CURDIR)/$(BIN) \
	$(GO) test -count=1 -v -timeout 20m -parallel 2 $(E2E_ARGS) ./test/python && \
	echo "e2e-python: passed in $$(($$(date +%s) - began)) s"
