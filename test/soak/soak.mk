# All kinds of events at once and at random, for a given time.
#
#	make soak                                              30 minutes
#	make soak SOAK_ARGS='--duration 2m --seed 1568384379'  repeats a run with its seed, shorter
SOAK_ARGS ?=

.PHONY: soak
soak: packages-build ## let the device plugin live through faults, restarts and MIG changes at random, 30 minutes
	@$(MAKE) --no-print-directory -j2 BIN=bin/race RACE=1 build
	GPUREADY_BIN=$(CURDIR)/bin/race $(GO) run ./test/soak $(SOAK_ARGS)
