package settings

import (
	"errors"
	"fmt"

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
	return errors.Join(all...)
}
