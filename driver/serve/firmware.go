package serve

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// firmwarePath is the kernel parameter with the first folder of its firmware search path
// (Documentation/driver-api/firmware/fw_search_path.rst). The kernel resolves it in the mount
// namespace of the node's first process.
const firmwarePath = "module/firmware_class/parameters/path"

// firmwareDir is the folder below the driver's state to which the firmware is copied. The
// firmware is needed as long as the modules, and the image may be removed before.
const firmwareDir = "firmware"

// copyFirmware copies the firmware that the modules name, and sets the kernel's search path.
func (d *Driver) copyFirmware(steps []kernel.Step) error {
	dir := filepath.Join(d.dir(), firmwareDir)
	copied := 0
	for _, step := range steps {
		if !step.Ours {
			continue
		}
		for _, name := range step.Module.Firmware {
			if !filepath.IsLocal(name) {
				return fmt.Errorf("%s: it names the firmware %q, which is not a local path", step.Module, name)
			}
			there, err := d.copyFile(path.Join("/lib/firmware", name), filepath.Join(dir, name))
			if err != nil {
				return fmt.Errorf("firmware of %s: %w", step.Module.Name, err)
			}
			if there {
				copied++
			}
		}
	}
	if copied == 0 {
		return nil
	}
	parameter := filepath.Join(d.System.Sys, firmwarePath)
	if before, err := os.ReadFile(parameter); err == nil {
		if old := strings.TrimSpace(string(before)); old != "" && old != dir {
			d.Log.Warn("the kernel's firmware path is changed until the driver is unloaded", "was", old, "is", dir)
			if err := record.Write(d.oldPath(), []byte(old)); err != nil {
				return err
			}
		}
	}
	// The kernel takes the whole write as the path: no newline.
	if err := os.WriteFile(parameter, []byte(dir), 0o644); err != nil {
		return fmt.Errorf("set the kernel's firmware path: %w", err)
	}
	d.Log.Info("firmware copied", "files", copied, "dir", dir)
	return nil
}

// oldPath returns the file that saves the kernel's previous firmware path.
func (d *Driver) oldPath() string { return filepath.Join(d.dir(), "firmware-path") }

// removeFirmware removes the copies, and restores the kernel's previous path.
func (d *Driver) removeFirmware() error {
	old, err := record.Read(d.oldPath(), 4096)
	if err == nil && len(old) > 0 {
		err = os.WriteFile(filepath.Join(d.System.Sys, firmwarePath), old, 0o644)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, record.Remove(d.oldPath()), os.RemoveAll(filepath.Join(d.dir(), firmwareDir)))
}

// copyFile copies a file of the image, if the image has it, unless a file of the same
// size is there.
func (d *Driver) copyFile(from, to string) (there bool, err error) {
	in, err := d.Image.OpenFile(from)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil // firmware for other GPUs, or the module has it built in
	}
	if err != nil {
		return false, err
	}
	defer in.Close() //nolint:errcheck // it is only read
	want, err := in.Stat()
	if err != nil {
		return false, err
	}
	if have, err := os.Stat(to); err == nil && have.Size() == want.Size() && !have.ModTime().Before(want.ModTime()) {
		return true, nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return false, err
	}
	// A fixed name: the leftover of a killed process is overwritten.
	out, err := os.OpenFile(to+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return false, err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Close())
	if err == nil {
		err = os.Rename(out.Name(), to)
	}
	if err != nil {
		return false, errors.Join(err, os.Remove(out.Name()))
	}
	return true, nil
}
