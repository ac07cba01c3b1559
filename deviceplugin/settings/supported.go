package settings

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpuready/gpuready/deviceplugin/config"
	baseconfig "github.com/gpuready/gpuready/internal/config"
)

// checkSupported returns an error for each setting that is valid but not supported, with its
// path in the file. To ignore such a setting would surprise its author.
func checkSupported(c *config.Config) error {
	var all []error
	refuse := func(path, format string, args ...any) {
		all = append(all, &baseconfig.Error{Path: path, Err: fmt.Errorf(format, args...)})
	}
	if s := c.Flags.DeviceDiscoveryStrategy; s != nil && *s == "tegra" {
		refuse("flags.deviceDiscoveryStrategy", "%q is not supported: NVML does not know integrated GPUs; remove it, or write %q", *s, "auto")
	}
	// A runtime that resolves CDI names and one that reads the variable would each
	// give the container its GPUs.
	list := c.Flags.Plugin.DeviceListStrategy
	for _, other := range []string{config.ListVariable, config.ListMounts} {
		if slices.Contains(list, config.ListCDI) && slices.Contains(list, other) {
			refuse("flags.plugin.deviceListStrategy", "%s and %s together would give a container its GPUs twice; write one of them", config.ListCDI, other)
		}
	}
	return errors.Join(all...)
}
