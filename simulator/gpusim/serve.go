package main

import (
	"maps"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/gpuready/gpuready/internal/program"
	"github.com/gpuready/gpuready/internal/readiness"
	"github.com/gpuready/gpuready/simulator/gpusim/serve"
)

func serving() command {
	return command{
		name:    "serve",
		summary: "serve as a node's driver until SIGTERM, in a container of a DaemonSet",
		text: `
Mounts a file system on --root that holds the driver root, whole from its first
moment on, and stays. It says that the driver is there in the driver's state
(STATE-DIR/driver/state.json) and, as other driver containers do, in the file
.driver-ctr-ready of --output-dir. In a container it needs privileges, and the
folder above --root mounted with mountPropagation: Bidirectional.

The driver outlives the process, as a kernel module does. Started again with the
same --profile, --gpus, --mig, --seed and versions, serve goes on with the driver
that is there: the GPUs are as they were, faults and later MIG layouts included,
and what runs on them goes on. Otherwise it says so and mounts another one on top,
in one moment: who still uses the old one is told that it is gone (or, after a
change of --driver-version, that library and module differ).

On SIGTERM .driver-ctr-ready is removed. A driver that any process uses stays; one
that nobody uses is unloaded: unmounted. gpusim down unloads it in any case.

The GPUs' UUIDs follow from the profile and --seed. In a DaemonSet that is the
node's name, so that no two nodes have the same, and each always has its own.`,
		example: `gpusim serve --profile h100-sxm
gpusim serve --profile a100-80gb --gpus 4 --mig '1g.10gb,2g.20gb;3=7g.80gb'
gpusim serve --profile t4 --root /tmp/driver --listen= \
  --state-dir /tmp/state --output-dir /tmp/validations
kubectl exec -n gpuready POD -- gpusim xid --gpu 3 --xid 79   # a fault on its node`,
		exits: `0  ended by SIGTERM or SIGINT
1  failed; the reason is on standard error
2  wrong use of the command line
3  another driver container is running there`,
		begin: func(c *call) func() error {
			c.rootFlag()
			m := c.machineFlags()
			c.StringVar(&m.layouts, "mig", "", "MIG from the start: [GPU=]LAYOUT;…, without GPU= of all that can do it (gpusim mig --help)")
			var o serve.Config
			c.StringVar(&o.Size, "size", "64m", "maximum size of the driver root, in tmpfs syntax; it needs about 4m")
			c.DurationVar(&o.BootDelay, "boot-delay", 0, "delay before a new driver appears, to imitate a slow one")
			c.StringVar(&o.StateDir, "state-dir", "/run/nvidia/gpuready", "folder of the components' states")
			c.StringVar(&o.OutputDir, "output-dir", readiness.DefaultDir, "folder of .driver-ctr-ready")
			c.StringVar(&o.Listen, "listen", ":9405", "address of /healthz, /readyz and /metrics; empty: none")
			format := c.String("log-format", "text", "text or json")
			maps.Copy(c.Env, map[string]string{
				"gpus": "GPUSIM_GPUS", "driver-version": "GPUSIM_DRIVER_VERSION", "module-version": "GPUSIM_MODULE_VERSION",
				"seed": "NODE_NAME", "mig": "GPUSIM_MIG", "size": "GPUSIM_SIZE", "boot-delay": "GPUSIM_BOOT_DELAY",
				"state-dir": "GPUREADY_STATE_DIR", "output-dir": "OUTPUT_DIR", "listen": "LISTEN_ADDRESS", "log-format": "LOG_FORMAT",
			})
			return func() error { return c.serve(m, o, *format) }
		},
	}
}

func (c *call) serve(m *machine, o serve.Config, format string) error {
	if o.BootDelay < 0 {
		return usagef("--boot-delay: %v is in the past", o.BootDelay)
	}
	for flag, path := range map[string]*string{"root": c.root, "state-dir": &o.StateDir, "output-dir": &o.OutputDir} {
		if !filepath.IsAbs(*path) {
			return usagef("--%s: %q is no absolute path", flag, *path)
		}
	}
	var err error
	if o.Log, err = program.NewLog(c.err, "driver", format, ""); err != nil {
		return usagef("%w", err)
	}
	if o.Spec, err = m.spec(); err != nil {
		return err
	}
	o.Root, o.Command = filepath.Clean(*c.root), c.line
	ctx, stop := signal.NotifyContext(c.ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return serve.Run(ctx, o)
}
