package serve

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Names of modules, as the kernel has them.
const (
	peermemModule = "nvidia_peermem"
	networkModule = "mlx5_core" // of the network's driver
)

// pollModules is the interval at which the kernel is polled for the network's driver, where
// that is the host's own. The kernel does not notify of loaded modules.
const pollModules = 2 * time.Second

// Peermem loads nvidia-peermem after the network's driver, which reads and writes the memory
// of GPUs through it. Replacing the network's driver unloads nvidia-peermem.
type Peermem struct {
	Survey
	Work         string // folder of modules that were built on the node; it may be missing
	DriverReady  string // file that exists when the GPUs' driver is loaded: .driver-ctr-ready
	NetworkReady string // file that exists when the network's driver is loaded
	HostNetwork  bool   // the network's driver is the host's own, which writes no file
	Log          *slog.Logger
}

// CheckLoaded returns an error where the network's driver is loaded and nvidia-peermem is not.
func (p *Peermem) CheckLoaded() error {
	loaded, err := p.System.ReadLoaded()
	if err != nil {
		return err
	}
	_, network := loaded[networkModule]
	if _, isLoaded := loaded[peermemModule]; isLoaded || !network {
		return nil
	}
	return &kernel.Error{Reason: kernel.ReasonDependencyMissing, Module: peermemModule,
		Message: "the network's driver (" + networkModule + ") is loaded and nvidia_peermem is not: nvidia-driver reload_nvidia_peermem loads it"}
}

// Reload waits until both drivers are loaded, and then loads nvidia-peermem, or reloads it.
func (p *Peermem) Reload(ctx context.Context) error {
	if err := p.waitForDrivers(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(p.Work); err == nil && p.Work != "" {
		built, err := host.Open(p.Work)
		if err != nil {
			return err
		}
		defer built.Close() //nolint:errcheck // it is only read
		p.Built = built
	}
	steps, err := p.plan()
	if err != nil {
		return err
	}
	if err := p.System.Unload(peermemModule); err != nil {
		return err
	}
	return p.System.LoadSteps(ctx, steps, p.Log)
}

// plan returns the steps that load nvidia-peermem.
func (p *Peermem) plan() ([]kernel.Step, error) {
	s, err := p.Snapshot()
	if err != nil {
		return nil, err
	}
	s.Wanted = []string{peermemModule}
	delete(s.Loaded, peermemModule)
	steps, err := kernel.PlanSteps(kernel.Inputs{Wanted: s.Wanted, Files: s.Files, Tree: s.Tree, Options: s.Options, Loaded: s.Loaded, Release: s.Release})
	if err != nil {
		return nil, err
	}
	trust := p.System.ReadTrust()
	for _, step := range steps {
		if err := trust.Check(step.Module); step.Ours && err != nil {
			return nil, err
		}
	}
	return steps, nil
}

// waitForDrivers waits until the drivers of the GPUs and of the network are loaded.
func (p *Peermem) waitForDrivers(ctx context.Context) error {
	logged := ""
	for {
		var missing string
		var failed error
		round, cancel := p.round(ctx)
		err := record.Watch(round, []string{p.DriverReady, p.NetworkReady}, func() {
			if missing, failed = p.missing(); missing == "" || failed != nil {
				cancel()
			} else if missing != logged {
				logged = missing
				p.Log.Info("waiting", "for", missing)
			}
		})
		cancel()
		switch {
		case failed != nil:
			return failed
		case missing == "":
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.Is(err, context.DeadlineExceeded):
			return err
		}
	}
}

// round returns the context for one wait for the files.
func (p *Peermem) round(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.HostNetwork {
		return context.WithTimeout(ctx, pollModules)
	}
	return context.WithCancel(ctx)
}

// missing names the driver that nvidia-peermem still waits for; "": none.
func (p *Peermem) missing() (string, error) {
	loaded, err := p.System.ReadLoaded()
	if err != nil {
		return "", err
	}
	_, gpu := loaded["nvidia"]
	_, network := loaded[networkModule]
	if !p.HostNetwork {
		network = exists(p.NetworkReady)
	}
	switch {
	case !gpu || !exists(p.DriverReady):
		return "the GPUs' driver (" + p.DriverReady + ")", nil
	case !network && p.HostNetwork:
		return "the host's driver of the network (" + networkModule + ")", nil
	case !network:
		return "the network's driver (" + p.NetworkReady + ")", nil
	}
	return "", nil
}
