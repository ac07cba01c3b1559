# What is signed about releases.
#
#	make e2e-release                                        a small release, signed, changed and refused
#	make e2e-release GPUREADY_E2E_LONG=1                    each of its blobs, too
#	make e2e-release E2E_ARGS='-run TestRelease/AChanged'   some of it
.PHONY: e2e-release
e2e-release: packages-build $(BIN)/tools/cosign $(BIN)/tools/registry ## sign a small release with cosign in a real registry, change it in every way, and have it refused
	GPUREADY_E2E_LONG='$(GPUREADY_E2E_LONG)' GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 10m $(E2E_ARGS) ./test/release
