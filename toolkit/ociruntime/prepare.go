package main

import (
	"strings"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/ociruntime/request"
)

// prepare adds the requested devices to the container's configuration.
func prepare(call call, s request.Settings) error {
	config, err := readConfig(call.Config)
	if err != nil {
		return err
	}
	wanted, err := request.Parse(config.Spec, s)
	if err != nil {
		return err
	}
	if wanted.Empty() && !wanted.RemoveHook && len(wanted.Warnings) == 0 {
		return nil
	}
	missing, err := wanted.Fulfill(config.Spec, func(kinds ...string) ([]cdi.File, error) {
		root, err := host.Open("/")
		if err != nil {
			return nil, err
		}
		defer root.Close()
		return cdi.LoadKinds(root, kinds, s.SpecDirs...)
	})
	if err != nil {
		return err
	}
	if warnings := append(wanted.Warnings, missing...); len(warnings) > 0 {
		report(call, "warning", strings.Join(warnings, "; "))
	}
	return config.Write()
}
