# The scenarios on a real cluster.
#
#	make e2e                                 the road, from a node to a CUDA job
#	make e2e E2E_ARGS='-run TestRoad'        some of it
#	make e2e-deviceplugin                    the device plugin: MIG, sharing, NUMA
#	make e2e-restarts RESTARTS=20            a kubelet that restarts under running pods
#	make e2e-versions KUBERNETES_VERSIONS=1.34   other versions of Kubernetes
#	make e2e-build                           what the suites of .ci/run need, so that two can run at a time
E2E_ARGS ?=
RESTARTS ?= 200
KUBERNETES_VERSIONS ?= 1.30 1.32 1.33 1.34 1.35 1.36 1.37
NEXT     := $(VERSION)-next

# RECORD=1 lets the scenarios that pass on a cluster write what the support matrix may claim.
ifdef RECORD
export GPUREADY_E2E_RECORDS := $(CURDIR)/docs/support
export GPUREADY_E2E_COMMAND := make $(MAKECMDGOALS)
endif

# Tests with a separate target.
APART := ^Test(DevicePlugin|KubeletRestarts|KubernetesVersion)

E2E_RUN = GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v ./test/e2e

.PHONY: e2e e2e-versions e2e-timeline e2e-deviceplugin e2e-restarts e2e-images e2e-build
e2e: e2e-images ## play the scenarios on a real cluster, with the images and manifests of this tree
	GPUREADY_E2E_LONG='$(GPUREADY_E2E_LONG)' $(E2E_RUN) -timeout 40m -parallel 4 -skip '$(APART)' $(E2E_ARGS)

e2e-timeline: ## measure from driver ready to a CUDA job in a pod, at the kubelet's default 10 s too
	@$(MAKE) --no-print-directory e2e GPUREADY_E2E_LONG=1 E2E_ARGS='-run TestTimeline'

e2e-deviceplugin: e2e-images ## the same for the device plugin: MIG, sharing, NUMA, reload
	$(E2E_RUN) -timeout 20m -parallel 4 -run '^TestDevicePlugin' $(E2E_ARGS)

e2e-restarts: e2e-images ## kill a kubelet 200 times under pods that use GPUs, and print how long it takes until it has them again
	GPUREADY_E2E_RESTARTS='$(RESTARTS)' $(E2E_RUN) -timeout 120m -run '^TestKubeletRestarts' $(E2E_ARGS)

# The newest has no folder of its own. Building one takes a quarter of an hour on two cores, once.
e2e-versions: e2e-images ## bring up GPUs on each version of Kubernetes from 1.32, and with a kubelet that drops CDI names
	@for version in $(KUBERNETES_VERSIONS); do \
		GPUREADY_E2E_KUBERNETES=$$version $(E2E_RUN) -timeout 60m -run '^TestKubernetesVersion' $(E2E_ARGS) || exit 1; \
	done

e2e-images: packages-cluster images $(BIN)/kubectl-gpu
	@GPUREADY_IMAGES='$(abspath $(IMAGE_DIR))' $(GO) test -count=1 -run '^TestBuilt' ./deployments/images/build
	@$(MAKE) --no-print-directory images VERSION=$(NEXT) IMAGE_DIR='$(BIN)/images-next' IMAGE_ARGS='device-plugin toolkit validator driver-simulator' >/dev/null

e2e-build: packages-machine packages-containers packages-runtimes e2e-images chart bundle $(addprefix $(BIN)/,standin simkernel gpu-provision tools/helm tools/cosign tools/registry olm/clusterserviceversions.json)
	@$(GO) run ./test/lab/cluster/tool build # not within the suites' time limits
