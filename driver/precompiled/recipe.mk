# What the Makefiles of all operating systems have in common. Each of them sets OS.
#
#	make image image-push         with the variables of docs/driver.md
#	make help                     lists all variables
TOP := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))/../..)

OUTPUT_DIR ?= $(TOP)/bin/precompiled
BASE_IMAGE ?= $(TOP)/bin/images/driver.tar

export PRECOMPILED_OS      := $(OS)
export PRECOMPILED_RECIPES := $(TOP)/driver/precompiled
export PRECOMPILED_PROGRAM := $(TOP)/bin/gpu-driver
export OUTPUT_DIR BASE_IMAGE

.PHONY: image
image: tool ## compile the modules for each kernel, and make an image of each
ifeq ($(origin BASE_IMAGE),file)
	@$(MAKE) -C '$(TOP)' --no-print-directory images IMAGE_ARGS=driver >/dev/null
endif
	@'$(TOP)/bin/tools/precompiled' image

.PHONY: image-push
image-push: tool ## push the images that were made
	@'$(TOP)/bin/tools/precompiled' push

.PHONY: help
help: tool
	@'$(TOP)/bin/tools/precompiled' image --help

.PHONY: tool
tool:
	@$(MAKE) -C '$(TOP)' --no-print-directory bin/gpu-driver bin/tools/precompiled
