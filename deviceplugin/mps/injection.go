package mps

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// injectionFile is the CDI specification that lets the clients of control daemons find them. The device
// plugin names pipes and shared memory itself; claims have nothing but CDI names.
const injectionFile = "gpuready-mps.yaml"

// buildInjection returns a CDI specification with a device for each shared GPU, named by the GPU's UUID. A
// claim gets what the device plugin's Allocate gives (allocate/response.go, addMPS).
func buildInjection(mpsRoot string, all []Spec) ([]byte, error) {
	out := cdispec.Spec{Kind: cdi.KindMPS}
	for _, s := range all {
		pipe := PipeDir(Container, s.Resource)
		for _, g := range s.GPUs {
			out.Devices = append(out.Devices, cdispec.Device{Name: string(g.UUID), ContainerEdits: cdispec.ContainerEdits{
				Env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + pipe},
				Mounts: []*cdispec.Mount{
					{HostPath: PipeDir(mpsRoot, s.Resource), ContainerPath: pipe, Options: []string{"ro", "nosuid", "nodev", "rbind"}},
					{HostPath: ShmDir(mpsRoot), ContainerPath: Shm, Options: []string{"rw", "nosuid", "nodev", "rbind"}},
				},
			}})
		}
	}
	slices.SortFunc(out.Devices, func(a, b cdispec.Device) int { return strings.Compare(a.Name, b.Name) })
	return cdi.Encode(out)
}

// saveInjection writes the CDI specification of the control daemons, or removes it if there is none.
func (d *daemon) saveInjection(mpsRoot string, all []Spec) error {
	if len(all) == 0 {
		return RemoveInjection(d.cfg.HostRoot)
	}
	path, err := injectionPath(d.cfg.HostRoot, cdi.DynamicDir)
	if err != nil {
		return err
	}
	data, err := buildInjection(mpsRoot, all)
	if err != nil {
		return err
	}
	if present, err := os.ReadFile(path); err == nil && string(present) == string(data) {
		return nil
	}
	return record.Write(path, data)
}

// RemoveInjection removes the CDI specification of an mps-daemon from the host, if there is one.
func RemoveInjection(hostRoot string) error {
	// A container may have the host's /run alone, without the link from /var/run.
	for _, dir := range []string{cdi.DynamicDir, "/run/cdi"} {
		path, err := injectionPath(hostRoot, dir)
		if err != nil {
			return err
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EROFS) {
			return fmt.Errorf("remove the CDI specification of the MPS control daemons: %w", err)
		}
	}
	return nil
}

// injectionPath returns the path at which this process sees the specification in a folder of the host.
func injectionPath(hostRoot, dir string) (string, error) {
	root, err := host.Open(hostRoot)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	at, err := root.Resolve(dir)
	if err != nil {
		return "", err
	}
	return filepath.Join(root.Path(at), injectionFile), nil
}

// publishInjection saves the CDI specification, and logs why it cannot. Only claims need it.
func (d *daemon) publishInjection(mpsRoot string, all []Spec) {
	if err := d.saveInjection(mpsRoot, all); err != nil {
		d.cfg.Log.Warn("claims cannot use the MPS control daemons: their CDI specification cannot be written; mount the host's "+cdi.DynamicDir,
			"path", cdi.DynamicDir+"/"+injectionFile, "message", fmt.Sprint(err))
	}
}
