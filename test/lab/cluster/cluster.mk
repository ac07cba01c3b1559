# A real control plane and nodes on this machine; see docs/development.md.
#
#	make cluster                                             one node, until Ctrl-C
#	make cluster CLUSTER_ARGS='--nodes 2 --profile dgx-2'    with gpuready and simulated GPUs
#	bin/cluster --help                                       all that it can do
CLUSTER_ARGS ?=

.PHONY: cluster
cluster: ## bring up a real cluster with this tree's images, until Ctrl-C
	@test/lab/cluster/announce.sh
	@$(MAKE) --no-print-directory -s packages-build packages-cluster images IMAGE_ARGS='-o name'
	@$(MAKE) --no-print-directory -s $(BIN)/cluster
	@$(BIN)/cluster up $(foreach name,$(IMAGE_NAMES),--image '$(IMAGE_DIR)/$(name).tar') $(CLUSTER_ARGS)

# Static: it is also the first process of a node, and a hook in its containers.
$(BIN)/cluster: $(GO_SOURCES) $(STAMP)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GOBUILD) -ldflags "$(LDFLAGS) $(X)" -o $@ ./test/lab/cluster/tool
