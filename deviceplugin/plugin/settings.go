package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/allocate"
	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Settings is a loaded configuration. It is never changed, only replaced.
type Settings struct {
	Config  *config.Config // complete; nil: none yet, or the defaults if Config.Follow is nil
	Health  health.Policy  // effect of XIDs on a GPU; the zero Policy is the default
	Name    string         // of the configuration, if it was chosen by name
	Hash    string         // of the file, for people to compare; "" without a file
	Ignored []string       // paths of unknown keys in the file that were skipped
}

const (
	reasonRefused   gpu.Reason = "ConfigRefused"
	reasonUnchosen  gpu.Reason = "ConfigNotChosen"
	waitingToChoose            = "waiting for the node's configuration to be chosen"
)

// ErrNotChosen is the error that Config.Follow delivers until a configuration is chosen. It is
// not a fault, but no device can be advertised before.
var ErrNotChosen = config.ErrNotChosen

// watchSettings applies each configuration that Config.Follow delivers.
func (p *Plugin) watchSettings(ctx context.Context) error {
	if p.cfg.Follow == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := p.cfg.Follow(ctx, func(s Settings, err error) {
		if err != nil {
			p.refuseSettings(err)
		} else if err := p.applySettings(s); err != nil {
			cancel(err)
		}
	})
	return preferCause(ctx, err)
}

// applySettings applies new settings. It returns ErrReplaced if they need a new process.
func (p *Plugin) applySettings(s Settings) error {
	if err := p.checkDriverRoot(s.Config); err != nil {
		p.cfg.Log.Info("executing this program again with the same sockets", "message", err.Error())
		p.willReplace.Store(true)
		return err
	}
	p.metrics.CountReload(nil)
	p.reportSettings(s)
	p.applyAndPublish(configInForce(s))
	return nil
}

// reportSettings sets the metrics of the configuration in force.
func (p *Plugin) reportSettings(s Settings) {
	p.metrics.SetConfig(s.Hash, s.Name, limitKeys(s.Ignored))
}

// limitKeys returns the first keys, as many as metrics and the state file have room for. The
// log has all of them.
func limitKeys(keys []string) []string {
	var all []string
	for i, key := range keys {
		if i == nodestate.MaxIgnoredKeys-1 && len(keys) > nodestate.MaxIgnoredKeys {
			return append(all, fmt.Sprintf("and %d more", len(keys)-i))
		}
		all = append(all, cmp.Or(record.Clean(key, 256), "?"))
	}
	return all
}

// checkDriverRoot returns ErrReplaced if settings name another driver root than those in force:
// a process can load NVML only once.
func (p *Plugin) checkDriverRoot(c *config.Config) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before, now := driverRoot(p.state.settings), driverRoot(c); p.state.configured && before != now {
		return fmt.Errorf("%w: flags.nvidiaDriverRoot was %q and is %q", ErrReplaced, before, now)
	}
	return nil
}

// refuseSettings records why a configuration is invalid. The one in force stays.
func (p *Plugin) refuseSettings(err error) {
	if !errors.Is(err, ErrNotChosen) {
		p.metrics.CountReload(err)
	}
	p.applyAndPublish(configRefused(err))
}

// driverPlace returns where the driver may be. It waits for the first settings.
func (p *Plugin) driverPlace(ctx context.Context) (driver.Place, error) {
	select {
	case <-p.configuredCh:
	case <-ctx.Done():
		return driver.Place{}, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	place := p.cfg.Driver
	if root := driverRoot(p.state.settings); root != "" {
		place.Root = root
	}
	return place, nil
}

// failsOnInitError reports whether to end rather than wait when the driver is present but does
// not work. It is the default, as in NVIDIA's device plugin.
func (p *Plugin) failsOnInitError() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	fail := p.state.settings.Flags.FailOnInitError
	return fail == nil || *fail
}

// findDeviceNodes finds the device nodes that the settings ask for, and logs changes of those
// that are missing. p.mu is held.
func (p *Plugin) findDeviceNodes(s *state) allocate.DeviceNodes {
	found, missing := allocate.FindDeviceNodes(allocate.Roots{HostRoot: p.cfg.HostRoot, DriverRoot: s.root}, s.settings, s.snapshot)
	if text := strings.Join(missing, "; "); text != p.missingNodes {
		p.missingNodes = text
		if text != "" {
			p.cfg.Log.Warn("containers do not get all that is configured", "reason", "DeviceNodesMissing", "path", found.DevRoot, "message", text)
		}
	}
	return found
}

// driverRoot returns the driver root that the settings name; "": none.
func driverRoot(c *config.Config) string {
	if root := c.Flags.NvidiaDriverRoot; root != nil {
		return *root
	}
	return ""
}

// firstSettings returns the first fact about settings: these settings, or that no configuration is
// chosen yet.
func (p *Plugin) firstSettings(s Settings) fact {
	switch {
	case s.Config != nil:
		p.reportSettings(s)
	case p.cfg.Follow == nil:
		s.Config = &config.Config{}
	default:
		return configRefused(fmt.Errorf("%w: %s", ErrNotChosen, waitingToChoose))
	}
	return configInForce(s)
}
