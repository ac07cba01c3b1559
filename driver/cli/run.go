package cli

import (
	"context"
	"errors"
	"io"

	"github.com/gpuready/gpuready/driver/serve"
	"github.com/gpuready/gpuready/driver/toolkit"
	"github.com/gpuready/gpuready/internal/program"
)

const runUsage = `Load the driver's modules, mount its user space at --root, and stay until SIGTERM.

Loaded modules that match are adopted, so a restarted container loads nothing. Other loaded
modules are unloaded first; gpu-driver names the processes that use them and waits for their
end. The driver's state (STATE-DIR/driver/state.json) always has the readiness of the driver,
or the reason why it is not ready.

On SIGTERM the driver is unloaded if nobody uses it. Otherwise it stays, and the state names
its users.

The container has to be privileged, with hostPID: true so that users can be named,
/lib/modules of the host mounted, and /run/nvidia with mountPropagation: Bidirectional.

Examples:
  gpu-driver run
  gpu-driver run --kernel-module-type proprietary --listen=
`

func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return runSharing(ctx, "", args, stdout, stderr)
}

// runInPod runs the driver container in a pod with OpenShift's Driver Toolkit as side-car.
func runInPod(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return runSharing(ctx, toolkit.Dir, args, stdout, stderr)
}

func runSharing(ctx context.Context, shared string, args []string, stdout, stderr io.Writer) error {
	return newRunOptions(shared, stdout).withDriver(args, stderr, func(d *serve.Driver) error { return d.Run(ctx) })
}

// newRunOptions returns the options of the command run; shared is the default of --toolkit-dir.
func newRunOptions(shared string, stdout io.Writer) *options {
	o := newOptions("run", runUsage, stdout)
	o.addText(&o.shared, "toolkit-dir", "DRIVER_TOOLKIT_SHARED_DIR", shared,
		"folder that is shared with OpenShift's Driver Toolkit, whose container builds the modules; empty: this one does")
	o.addSurvey()
	o.addPlaces()
	o.addSources()
	o.addText(&o.listen, "listen", "LISTEN_ADDRESS", ":9405", "address of /healthz, /readyz and /metrics; empty: none")
	return o
}

const sideCarUsage = `Build the driver's modules for the driver container of the same pod, with the compiler
and the kernel's headers of this image: what the container of OpenShift's Driver Toolkit
runs. It answers until SIGTERM.

Examples:
  ocp_dtk_entrypoint dtk-build-driver
`

func sideCar(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("dtk-build-driver", sideCarUsage, stdout)
	o.addText(&o.shared, "toolkit-dir", "DRIVER_TOOLKIT_SHARED_DIR", toolkit.Dir, "folder that is shared with the driver container")
	o.addText(&o.headers, "headers-root", "HEADERS_ROOT", "/", "folder below which the kernel's headers are installed")
	o.AddLogFormat(&o.logFormat)
	if err := errors.Join(o.Read(args), o.RefuseArgs()); err != nil {
		return err
	}
	log, err := program.NewLog(stderr, "driver-toolkit", o.logFormat, "")
	if err != nil {
		return err
	}
	s := toolkit.Builder{Dir: o.shared, Root: o.headers, Log: log}
	return withReasonCode(s.Run(ctx))
}

const loadUsage = `Load the driver's modules, show its user space at --root, and end. The driver stays.

Examples:
  gpu-driver load
`

func loadCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("load", loadUsage, stdout)
	o.addSurvey()
	o.addSources()
	o.addPlaces()
	return o.withDriver(args, stderr, func(d *serve.Driver) error { return d.Load(ctx) })
}

const unloadUsage = `Unload the driver's modules and take its root away, if nobody uses them.

Examples:
  gpu-driver unload
`

func unloadCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o := newOptions("unload", unloadUsage, stdout)
	o.addSurvey()
	o.addCache()
	o.addPlaces()
	return o.withDriver(args, stderr, func(d *serve.Driver) error { return d.Unload(ctx) })
}

// withDriver parses the command line and runs f with the driver that it describes.
func (o *options) withDriver(args []string, stderr io.Writer, f func(*serve.Driver) error) error {
	if err := errors.Join(o.Read(args), o.RefuseArgs()); err != nil {
		return err
	}
	d, closeAll, err := o.openDriver(stderr)
	if err != nil {
		return err
	}
	defer closeAll()
	return withReasonCode(f(d))
}
