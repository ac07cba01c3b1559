package toolkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
)

// receiveModules copies the modules out of the side-car's reach and verifies the copies.
func (m *Client) receiveModules(ctx context.Context, built *response) (string, error) {
	dir, err := os.MkdirTemp(m.Work, "modules-")
	if err != nil {
		return "", err
	}
	if err := m.receiveInto(ctx, built, dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

// places lists the folders below modules/ in which NVIDIA's side-car leaves modules: those
// in which nvidia-installer and DKMS install them below /lib/modules/<release>. The first
// folder with a module counts.
var places = []string{"", "kernel/drivers/video", "extra", "updates", "updates/dkms"}

func (m *Client) receiveInto(ctx context.Context, built *response, dir string) error {
	root, err := host.Open(m.Dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	if !built.Empty && len(built.Modules) != len(m.Request.Modules) {
		return m.refuseModules(fmt.Errorf("it reports %d built modules instead of %d", len(built.Modules), len(m.Request.Modules)))
	}
	var own, others []string
	for _, name := range m.Request.Modules {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.copyBuilt(root, built, name+".ko", dir); err != nil {
			return err
		}
		if _, other := markers[name]; other {
			others = append(others, name)
		} else {
			own = append(own, name)
		}
	}
	err = errors.Join(kernel.CheckBuilt(dir, own, m.Request.Release, m.Request.Version), kernel.CheckBuilt(dir, others, m.Request.Release, ""))
	if err == nil {
		err = m.checkKind(dir)
	}
	if err != nil {
		return m.refuseModules(err)
	}
	return nil
}

// checkKind rejects a module nvidia of another kind than requested. The other modules do not
// reveal their kind.
func (m *Client) checkKind(dir string) error {
	if m.Request.Kind == "" || !slices.Contains(m.Request.Modules, "nvidia") {
		return nil
	}
	root, err := host.Open(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	main, err := kernel.ReadModule(root, "/nvidia.ko")
	if err == nil && string(main.Kind()) != m.Request.Kind {
		err = fmt.Errorf("nvidia.ko is of the %s kind, not the %s one", main.Kind(), m.Request.Kind)
	}
	return err
}

func (m *Client) refuseModules(err error) error {
	return brokenError(err, "the Driver Toolkit's modules in %s: %v; look at the log of openshift-driver-toolkit-ctr", filepath.Join(m.Dir, modulesName), err)
}

// copyBuilt copies one module from the folder in which the side-car has left it.
func (m *Client) copyBuilt(root *host.Root, built *response, file, to string) error {
	if !built.Empty {
		sum, isListed := built.Modules[file]
		if !isListed {
			return m.refuseModules(fmt.Errorf("%s is missing", file))
		}
		return m.copyModule(root, file, to, sum)
	}
	var err error
	for _, place := range places {
		if err = m.copyModule(root, path.Join(place, file), to, ""); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return err
}

// copyModule copies one module, whose digest has to be sum; "": any. It opens only a regular
// file inside the shared folder, and bounds the copy.
func (m *Client) copyModule(root *host.Root, at, to, sum string) error {
	in, err := root.OpenFile(path.Join("/", modulesName, at))
	if err != nil {
		return m.refuseModules(err)
	}
	defer in.Close() //nolint:errcheck // it is only read
	out, err := os.OpenFile(filepath.Join(to, path.Base(at)), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	limit := m.limit
	if limit == 0 {
		limit = maxModule
	}
	is, err := folder.CopySum(out, io.LimitReader(in, limit+1))
	info, statErr := out.Stat()
	if err = errors.Join(err, statErr, out.Close()); err != nil {
		return err
	}
	switch {
	case info.Size() > limit:
		return m.refuseModules(fmt.Errorf("%s has more than %d bytes", at, limit))
	case sum != "" && is != sum:
		return m.refuseModules(fmt.Errorf("%s is not what was built: it has changed since", at))
	}
	return nil
}
