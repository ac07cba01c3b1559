# This release beside the one before it, on a real cluster.
#
#	make e2e-skew                                    components of both releases together; upgrade and rollback
#	make e2e-skew E2E_ARGS='-run TestManifests'      some of it
#
# The images of the release before come from its commit, in a worktree below bin/previous, once. The
# tree of a new release names the one before it here.
PREVIOUS        := v0.1.0
PREVIOUS_COMMIT := 105a7d830dc5ad7eea0f7e90aa8de60876b8e1af
PREVIOUS_DIR    := $(BIN)/previous/$(PREVIOUS)

.PHONY: e2e-skew
e2e-skew: e2e-images chart $(BIN)/tools/helm $(PREVIOUS_DIR)/built ## play this release with components of the one before, an upgrade and a rollback, under pods with GPUs
	@$(GO) run ./test/lab/cluster/tool build # not within the tests' time limit
	@began=$$(date +%s); GPUREADY_E2E='$(CURDIR)/$(BIN)' GPUREADY_E2E_PREVIOUS='$(abspath $(PREVIOUS_DIR))' \
	$(GO) test -count=1 -v -timeout 40m $(E2E_ARGS) ./test/skew && \
	echo "e2e-skew: passed in $$(($$(date +%s) - began)) s"

# Its own Makefile builds it, without this one's variables.
$(PREVIOUS_DIR)/built: test/skew/skew.mk | packages-cluster packages-images
	@git cat-file -e '$(PREVIOUS_COMMIT)^{commit}' 2>/dev/null || { \
		echo 'e2e-skew: this checkout lacks $(PREVIOUS_COMMIT), which is $(PREVIOUS); run git fetch --unshallow' >&2; exit 1; }
	@mkdir -p $(@D) && git worktree prune
	@test -e $(@D)/tree/Makefile || git worktree add --quiet --force --detach $(@D)/tree $(PREVIOUS_COMMIT)
	@git -C $(@D)/tree checkout --quiet --detach $(PREVIOUS_COMMIT)
	@echo '  build $(PREVIOUS_DIR) (minutes, the first time)'
	$(Q)env -u MAKEFLAGS -u MAKEOVERRIDES -u MAKELEVEL -u VERSION -u GOFLAGS $(MAKE) --no-print-directory -C $(@D)/tree images chart bin/kubectl-gpu
	@rm -rf $(@D)/images $(@D)/charts && cp -r $(addprefix $(@D)/tree/bin/,images charts kubectl-gpu) $(@D)/
	@echo '$(PREVIOUS) $(PREVIOUS_COMMIT)' >$@
