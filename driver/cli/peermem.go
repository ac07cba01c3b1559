package cli

import (
	"context"
	"errors"
	"io"
	"path/filepath"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/serve"
	"github.com/gpuready/gpuready/internal/program"
)

const reloadPeermemUsage = `Load or reload nvidia-peermem once the drivers of the GPUs and of the network are loaded, and
stay until SIGTERM: the command of the container nvidia-peermem-ctr.

Examples:
  nvidia-driver reload_nvidia_peermem
`

func reloadPeermem(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("reload_nvidia_peermem", reloadPeermemUsage, stdout)
	o.addSurvey()
	o.addPlaces()
	p := serve.Peermem{}
	o.addText(&p.Work, "build-dir", "BUILD_DIR", "/var/tmp/gpu-driver", "folder in which modules are built")
	o.addText(&p.NetworkReady, "network-ready", "NETWORK_READY_FILE", "/run/mellanox/drivers/.driver-ready", "file by which the container of the network's driver says that it is loaded")
	o.addSwitch(&p.HostNetwork, "use-host-mofed", "USE_HOST_MOFED", "the network's driver is the host's own: it is loaded when the kernel has mlx5_core")
	if err := errors.Join(o.Read(args), o.RefuseArgs()); err != nil {
		return err
	}
	var err error
	if p.Log, err = program.NewLog(stderr, "driver", o.logFormat, o.level); err != nil {
		return err
	}
	var closeAll func()
	if p.Survey, closeAll, err = o.openSurvey(); err != nil {
		return err
	}
	defer closeAll()
	p.DriverReady = filepath.Join(o.outputDir, serve.ReadyFile)
	if err := p.Reload(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return withReasonCode(err)
	}
	<-ctx.Done()
	return nil
}

const probePeermemUsage = `Exit with 0 if nvidia-peermem is loaded, or if the network's driver is not. Otherwise exit
with 4 and write the reason to standard error.

Examples:
  nvidia-driver probe_nvidia_peermem
`

func probePeermem(_ context.Context, args []string, stdout, _ io.Writer) error {
	o := newOptions("probe_nvidia_peermem", probePeermemUsage, stdout)
	if err := errors.Join(o.Read(args), o.RefuseArgs()); err != nil {
		return err
	}
	p := serve.Peermem{Survey: serve.Survey{System: kernel.Host}}
	err := p.CheckLoaded()
	if _, ok := errors.AsType[*kernel.Error](err); ok {
		err = program.WithExitCode(exitNotReady, err)
	}
	return err
}
