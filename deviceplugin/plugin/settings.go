package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/driver"
	"github.com/gpuready/gpuready/deviceplugin/health"
	"github.com/gpuready/gpuready/deviceplugin/nodes"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Settings are what a configuration says. They are never changed, only replaced.
type Settings struct {
	Config *config.Config // complete; nil: none yet, or the defaults where none can come
	Health health.Policy  // what XIDs do to a GPU; the zero Policy is the default
	Name   string         // of the configuration, where it was chosen by its name
	Hash   string         // of the file, for people to compare; "": there is none
	// Ignored are the paths of keys that are not known and were passed over.
	Ignored []string
}

const (
	reasonRefused   gpu.Reason = "ConfigRefused"
	reasonUnchosen  gpu.Reason = "ConfigNotChosen"
	waitingToChoose            = "waiting for the node's configuration to be chosen"
)

// ErrNotChosen is what Config.Follow tells of while nobody has said which
// configuration is to be used. It is no fault, but nothing can be served.
var ErrNotChosen = config.ErrNotChosen

// watchSettings applies each configuration that comes.
func (p *Plugin) watchSettings(ctx context.Context) error {
	if p.cfg.Follow == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := p.cfg.Follow(ctx, func(s Settings, err error) {
		if err != nil {
			p.refuse(err)
		} else if err := p.configure(s); err != nil {
			cancel(err)
		}
	})
	return cause(ctx, err)
}

// configure lets settings be in force. The error is ErrReplaced where they take
// another process.
func (p *Plugin) configure(s Settings) error {
	if err := p.another(s.Config); err != nil {
		p.cfg.Log.Info("going on as a new program with the same sockets", "message", err.Error())
		p.replace.Store(true)
		return err
	}
	p.meters.Reloaded(nil)
	p.inForce(s)
	p.update(func() {
		p.refused = nil
		p.settings, p.ignored = s.Config, ignored(s.Ignored)
		p.health = p.health.WithPolicy(s.Health)
		p.find()
		p.choose()
	})
	return nil
}

// inForce says which configuration is.
func (p *Plugin) inForce(s Settings) { p.meters.Configured(s.Hash, s.Name, ignored(s.Ignored)) }

// ignored are as many of the keys as metrics and the state file have room for; the
// log names all of them.
func ignored(keys []string) []string {
	var all []string
	for i, key := range keys {
		if i == nodestate.MaxIgnoredKeys-1 && len(keys) > nodestate.MaxIgnoredKeys {
			return append(all, fmt.Sprintf("and %d more", len(keys)-i))
		}
		all = append(all, cmp.Or(record.Clean(key, 256), "?"))
	}
	return all
}

// another says whether settings take another process: NVML is loaded once.
func (p *Plugin) another(c *config.Config) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was, now := driverRoot(p.settings), driverRoot(c); p.chosen() && was != now {
		return fmt.Errorf("%w: flags.nvidiaDriverRoot was %q and is %q", ErrReplaced, was, now)
	}
	return nil
}

// refuse says that a configuration is not put into force, and why. What was in
// force stays.
func (p *Plugin) refuse(err error) {
	if !errors.Is(err, ErrNotChosen) {
		p.meters.Reloaded(err)
	}
	p.update(func() { p.refused = err })
}

// refusal is for phase: why no other configuration is in force.
func (p *Plugin) refusal() (gpu.Reason, string) {
	if errors.Is(p.refused, ErrNotChosen) {
		return reasonUnchosen, p.refused.Error()
	}
	// One line for each mistake is one sentence here.
	return reasonRefused, strings.ReplaceAll(p.refused.Error(), "\n", "; ")
}

// place is where the driver may be. It waits until that is known.
func (p *Plugin) place(ctx context.Context) (driver.Place, error) {
	select {
	case <-p.choice:
	case <-ctx.Done():
		return driver.Place{}, ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	place := p.cfg.Driver
	if root := driverRoot(p.settings); root != "" {
		place.Root = root
	}
	return place, nil
}

// choose says that settings are in force. p.mu is held.
func (p *Plugin) choose() {
	if !p.chosen() {
		close(p.choice)
	}
}

func (p *Plugin) chosen() bool {
	select {
	case <-p.choice:
		return true
	default:
		return false
	}
}

// failOnInitError says that it is better to end than to wait where the driver is
// there and does not work, as is the reference's default.
func (p *Plugin) failOnInitError() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	fail := p.settings.Flags.FailOnInitError
	return fail == nil || *fail
}

// find looks for the device nodes that the settings ask for. p.mu is held.
func (p *Plugin) find() {
	if p.snapshot.Driver.Version == "" {
		return
	}
	var lacking []string
	p.host, lacking = nodes.Find(nodes.Place{HostRoot: p.cfg.HostRoot, DriverRoot: p.root}, p.settings, p.snapshot)
	if now := strings.Join(lacking, "; "); now != p.lacking {
		p.lacking = now
		if now != "" {
			p.cfg.Log.Warn("containers do not get all that is configured", "reason", "DeviceNodesMissing", "path", p.host.DevRoot, "message", now)
		}
	}
}

func driverRoot(c *config.Config) string {
	if root := c.Flags.NvidiaDriverRoot; root != nil {
		return *root
	}
	return ""
}

// begun is the first word on the settings: those of the start, or that they are
// still to come.
func (p *Plugin) begun(s Settings) {
	p.settings, p.ignored, p.choice = s.Config, ignored(s.Ignored), make(chan struct{})
	switch {
	case s.Config != nil:
		p.choose()
		p.inForce(s)
	case p.cfg.Follow == nil:
		p.settings = &config.Config{}
		p.choose()
	default:
		p.settings = &config.Config{}
		p.refused = fmt.Errorf("%w: %s", ErrNotChosen, waitingToChoose)
	}
	p.health = p.health.WithPolicy(s.Health)
}
