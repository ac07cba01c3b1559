# One file that proves gpuready on a bare machine with a GPU, as root and without a network:
#
#	make gpu-kit                              bin/gpu-kit; the first time it builds Kubernetes, for minutes
#	make gpu-kit-test                         the same with a simulated driver
#	sudo bin/gpu-kit --out DIR                there: the page DIR/gpu-kit.md, and the same as JSON
KIT_IMAGES := device-plugin toolkit validator cuda-samples dra-driver driver-simulator

.PHONY: gpu-kit
gpu-kit: packages-build packages-images packages-cluster packages-kit ## pack a cluster, the images and their proof into one file for a machine with a GPU
	@$(MAKE) --no-print-directory -s images IMAGE_ARGS='$(KIT_IMAGES) -o name' >/dev/null
	@$(MAKE) --no-print-directory $(BIN)/gpu-kit

KIT_PARTS := $(addprefix $(BIN)/kit/,programs kit starter count.so)

$(BIN)/gpu-kit: $(KIT_PARTS) $(foreach image,$(KIT_IMAGES),$(IMAGE_DIR)/$(image).tar) $(wildcard test/kit/pack/*.go deployments/static/*.yaml)
	@echo '  pack $@ (minutes)'
	$(Q)$(GO) run ./test/kit/pack --kit $(BIN)/kit/kit --starter $(BIN)/kit/starter --programs $(BIN)/kit/programs --count $(BIN)/kit --images $(IMAGE_DIR) --out $@

$(BIN)/kit/programs: $(wildcard test/kit/programs/*) $(wildcard $(foreach m,kubernetes etcd containerd,test/lab/binaries/$(m)/go.*))
	@echo '  build $@ (many minutes, the first time)'
	$(Q)test/kit/programs/build.sh test/lab/binaries $@

$(BIN)/kit/kit $(BIN)/kit/starter: $(GO_SOURCES)
	@echo '  build $@'
	$(Q)CGO_ENABLED=0 $(GOBUILD) -ldflags "$(LDFLAGS) $(X)" -o $@ ./$(if $(filter %/kit,$@),test/kit,test/kit/starter)

# NVML's functions are those of nvml.h.
$(BIN)/kit/count.so: test/kit/count/count.c go.mod
	@echo '  build $@'
	$(Q)sed -n 's/^.*nvmlReturn_t DECLDIR \(nvml[A-Za-z0-9_]*\).*$$/CALL(\1)/p' $(NVML_DIR)/nvml.h | sort -u >$(@D)/calls.h
	$(Q)$(CC) -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -I $(@D) $< -o $@ -ldl

.PHONY: gpu-kit-test
gpu-kit-test: gpu-kit ## prove that file with a simulated driver: its size, all steps, four minutes, nothing left behind
	GPUREADY_KIT=$(abspath $(BIN)/gpu-kit) GPUREADY_IMAGES=$(abspath $(IMAGE_DIR)) $(GO) test -count=1 -v -timeout 10m -run '^TestKit' ./test/kit
