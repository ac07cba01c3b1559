# A notebook on a simulated GPU, in a real browser.
#
#	make notebook-image                 bin/notebook/notebook.tar, of Debian's packages
#	make e2e-notebook                   a cluster, the notebook's manifest, headless Chromium
#
# The image has parts of NVIDIA's, under NVIDIA's licence: only those who build it may use it, and
# no other target needs them. A screenshot of the browser is then in bin/notebook/notebook.png.
NOTEBOOK := $(BIN)/notebook/notebook.tar
NOTEBOOK_SAMPLES := vectoradd reduction gemm bandwidth memtest

.PHONY: notebook-image e2e-notebook
notebook-image: packages-build packages-runtimes $(addprefix $(BIN)/,$(NOTEBOOK_SAMPLES)) ## build a notebook image from Debian's packages (fetches parts of the CUDA toolkit)
	@$(GO) run ./test/notebook image --bin '$(BIN)' --out '$(NOTEBOOK)' $(NOTEBOOK_SAMPLES)

e2e-notebook: e2e-images notebook-image ## run a notebook on a simulated GPU in headless Chromium
	@began=$$(date +%s); GPUREADY_E2E='$(CURDIR)/$(BIN)' GPUREADY_NOTEBOOK='$(abspath $(NOTEBOOK))' $(GO) test -count=1 -v -timeout 20m $(E2E_ARGS) ./test/notebook && \
	echo "e2e-notebook: passed in $$(($$(date +%s) - began)) s"
