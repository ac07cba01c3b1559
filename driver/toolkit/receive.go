package toolkit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
)

// receive copies the modules out of the side-car's reach and verifies the copies.
func (m *Main) receive(ctx context.Context, built *answer) (string, error) {
	dir, err := os.MkdirTemp(m.Work, "modules-")
	if err != nil {
		return "", err
	}
	if err := m.receiveInto(ctx, built, dir); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return dir, nil
}

func (m *Main) receiveInto(ctx context.Context, built *answer, dir string) error {
	root, err := host.Open(m.Dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	if len(built.Modules) != len(m.Request.Modules) {
		return m.refuse(fmt.Errorf("it says that it has built %d modules, not %d", len(built.Modules), len(m.Request.Modules)))
	}
	var own, others []string
	for _, name := range m.Request.Modules {
		if err := ctx.Err(); err != nil {
			return err
		}
		sum, there := built.Modules[name+".ko"]
		if !there {
			return m.refuse(fmt.Errorf("it has not built %s.ko", name))
		}
		if err := m.take(root, name+".ko", dir, sum); err != nil {
			return err
		}
		if _, other := markers[name]; other {
			others = append(others, name)
		} else {
			own = append(own, name)
		}
	}
	err = errors.Join(kernel.CheckBuilt(dir, own, m.Request.Release, m.Request.Version), kernel.CheckBuilt(dir, others, m.Request.Release, ""))
	if err != nil {
		return m.refuse(err)
	}
	return nil
}

func (m *Main) refuse(err error) error {
	return broken(err, "the Driver Toolkit's modules in %s: %v; look at the log of openshift-driver-toolkit-ctr", filepath.Join(m.Dir, modulesName), err)
}

// take copies one module, whose digest has to be sum. The copy is bounded, and nothing but a
// regular file inside the shared folder is opened.
func (m *Main) take(root *host.Root, name, to, sum string) error {
	in, err := root.OpenFile("/" + modulesName + "/" + name)
	if err != nil {
		return m.refuse(err)
	}
	defer in.Close() //nolint:errcheck // it is only read
	out, err := os.OpenFile(filepath.Join(to, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	limit := m.limit
	if limit == 0 {
		limit = maxModule
	}
	is, err := folder.Sum(out, io.LimitReader(in, limit))
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	if is != sum {
		return m.refuse(fmt.Errorf("%s is not what was built: it has changed since, or has more than %d bytes", name, limit))
	}
	return nil
}
