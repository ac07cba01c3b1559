package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// firmwarePath is the kernel parameter with the first folder of its firmware search path
// (Documentation/driver-api/firmware/fw_search_path.rst). The kernel resolves it in the mount
// namespace of the node's first process.
const firmwarePath = "module/firmware_class/parameters/path"

// firmwareDir is the folder, of the node's cache or the driver's state, to which the firmware is copied. The
// firmware is needed as long as the modules, and the image may be removed before.
const firmwareDir = "firmware"

// firmwareRecord records which files were added to a folder of the node's administrator.
type firmwareRecord struct {
	Dir   string   `json:"dir"` // as the node's first process has it
	Files []string `json:"files"`
}

const (
	firmwareName   = "firmware.json" // file of a firmwareRecord, beside the folder of firmware
	enableFirmware = "NVreg_EnableGpuFirmware"
)

// copyFirmware copies the firmware that the modules name to a folder in which the kernel finds it.
func (d *Driver) copyFirmware(steps []kernel.Step) error {
	names, err := d.listFirmware(steps)
	if err != nil || len(names) == 0 {
		return err
	}
	parameter := filepath.Join(d.System.Sys, firmwarePath)
	var old string
	if data, err := os.ReadFile(parameter); err == nil {
		old = strings.TrimSpace(string(data))
	}
	if d.isForeign(old) {
		err := d.addFirmware(old, names)
		if err == nil {
			return nil
		}
		d.Log.Warn("the kernel's firmware path is changed until the driver is unloaded, for its folder cannot be used", "was", old, "err", err)
		if err := record.Write(d.oldPath(), []byte(old)); err != nil {
			return err
		}
	}
	dir := d.chooseDir()
	if err := d.copyFiles(names, dir); err != nil {
		return err
	}
	// The kernel takes the whole write as the path: no newline.
	if err := os.WriteFile(parameter, []byte(dir), 0o644); err != nil {
		return fmt.Errorf("set the kernel's firmware path: %w", err)
	}
	d.Log.Info("firmware copied", "files", len(names), "dir", dir)
	return nil
}

// listFirmware returns the names of the firmware that the image has for the modules to load. A module that is told not to
// use any needs none.
func (d *Driver) listFirmware(steps []kernel.Step) ([]string, error) {
	var names []string
	for _, step := range steps {
		if !step.Ours || isFirmwareOff(step.Params) {
			continue
		}
		for _, name := range step.Module.Firmware {
			if !filepath.IsLocal(name) {
				return nil, fmt.Errorf("%s: it names the firmware %q, which is not a local path", step.Module, name)
			}
			_, err := d.Image.Stat(path.Join("/lib/firmware", name))
			switch {
			case errors.Is(err, os.ErrNotExist): // it is for other GPUs, or built into the module
			case err != nil:
				return nil, fmt.Errorf("firmware of %s: %w", step.Module.Name, err)
			default:
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// isFirmwareOff reports whether parameters turn off the firmware of GPUs. The last of several applies.
func isFirmwareOff(params []kernel.Param) bool {
	off := false
	for _, p := range params {
		if strings.ReplaceAll(p.Name, "-", "_") == enableFirmware {
			n, err := strconv.ParseInt(p.Value, 0, 32)
			off = err == nil && n == 0
		}
	}
	return off
}

// isForeign reports whether a firmware path of the kernel is the administrator's, and not gpu-driver's or that of
// another driver container.
func (d *Driver) isForeign(dir string) bool {
	return dir != "" && !slices.Contains(d.ownDirs(), dir) && !strings.HasPrefix(dir, d.Root+"/")
}

// ownDirs returns the folders in which gpu-driver may put firmware.
func (d *Driver) ownDirs() []string {
	dirs := []string{filepath.Join(d.dir(), firmwareDir)}
	if d.Sources.Cache != "" {
		dirs = append(dirs, filepath.Join(d.Sources.Cache, firmwareDir))
	}
	return dirs
}

// chooseDir returns the folder to put firmware in: on the node's disk if the cache is there, else in the driver's
// state, which is in memory.
func (d *Driver) chooseDir() string {
	if d.isOnDisk(d.Sources.Cache) {
		return filepath.Join(d.Sources.Cache, firmwareDir)
	}
	return filepath.Join(d.dir(), firmwareDir)
}

// isOnDisk reports whether a folder of this container is at the same path on the node, where the kernel looks for it,
// and not in memory.
func (d *Driver) isOnDisk(dir string) bool {
	node, ok := d.System.NodeRoot()
	if dir == "" || !ok {
		return false
	}
	here, err := os.Stat(dir)
	if err != nil {
		return false
	}
	there, err := os.Stat(filepath.Join(node, dir))
	var fs unix.Statfs_t
	return err == nil && os.SameFile(here, there) && unix.Statfs(dir, &fs) == nil && fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.RAMFS_MAGIC
}

// addFirmware ensures that a folder of the node's administrator has some firmware. What it adds is recorded before, to be
// removed with the driver.
func (d *Driver) addFirmware(dir string, names []string) error {
	here, err := d.onNode(dir)
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return d.hasFirmware(here, name) })
	if len(missing) == 0 {
		d.Log.Info("the kernel's firmware path has the firmware", "files", len(names), "dir", dir)
		return nil
	}
	data, err := json.Marshal(firmwareRecord{dir, missing})
	if err != nil {
		return err
	}
	file := filepath.Join(filepath.Dir(d.chooseDir()), firmwareName)
	if err := record.Write(file, append(data, '\n')); err != nil {
		return err
	}
	if err := d.copyFiles(missing, here); err != nil {
		return errors.Join(err, d.removeAdded(file))
	}
	d.Log.Info("firmware copied to the kernel's firmware path", "files", len(missing), "dir", dir)
	return nil
}

// onNode returns the path in this process of a folder of the node.
func (d *Driver) onNode(dir string) (string, error) {
	at, ok := d.System.NodeRoot()
	if !ok {
		return "", errors.New("the node's file system is not visible; run this container with hostPID: true")
	}
	node, err := host.Open(at)
	if err != nil {
		return "", err
	}
	defer node.Close() //nolint:errcheck // it is only read
	resolved, err := node.Resolve(dir)
	return node.Path(resolved), err
}

// hasFirmware reports whether a folder has a file of the size of the image's.
func (d *Driver) hasFirmware(dir, name string) bool {
	want, err := d.Image.Stat(path.Join("/lib/firmware", name))
	if err != nil {
		return false
	}
	have, err := os.Stat(filepath.Join(dir, name))
	return err == nil && have.Mode().IsRegular() && have.Size() == want.Size()
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
	err = errors.Join(err, record.Remove(d.oldPath()))
	for _, dir := range d.ownDirs() {
		err = errors.Join(err, d.removeAdded(filepath.Join(filepath.Dir(dir), firmwareName)), os.RemoveAll(dir))
	}
	return err
}

// removeAdded removes the files of a firmwareRecord, and folders that are empty then. What cannot be removed stays: it
// is in nobody's way.
func (d *Driver) removeAdded(file string) error {
	data, err := record.Read(file, maxRecord)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var added firmwareRecord
	if err == nil {
		err = json.Unmarshal(data, &added)
	}
	here := ""
	if err == nil {
		here, err = d.onNode(added.Dir)
	}
	for _, name := range added.Files {
		if err != nil || !filepath.IsLocal(name) {
			break
		}
		at := filepath.Join(here, name)
		err = os.Remove(at)
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		for dir := filepath.Dir(at); len(dir) > len(here) && os.Remove(dir) == nil; {
			dir = filepath.Dir(dir)
		}
	}
	if err != nil {
		d.Log.Warn("firmware stays in the kernel's firmware path", "dir", added.Dir, "err", err)
	}
	return record.Remove(file)
}

// copyFiles copies firmware of the image to a folder.
func (d *Driver) copyFiles(names []string, dir string) error {
	for _, name := range names {
		if err := d.copyFile(path.Join("/lib/firmware", name), filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("firmware %s: %w", name, err)
		}
	}
	return nil
}

// copyFile copies a file of the image, unless a file of the same size is there.
func (d *Driver) copyFile(from, to string) error {
	in, err := d.Image.OpenFile(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it is only read
	want, err := in.Stat()
	if err != nil {
		return err
	}
	if have, err := os.Stat(to); err == nil && have.Size() == want.Size() && !have.ModTime().Before(want.ModTime()) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	// A fixed name: the leftover of a killed process is overwritten.
	out, err := os.OpenFile(to+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	err = errors.Join(err, out.Close())
	if err == nil {
		err = os.Rename(out.Name(), to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(out.Name()))
	}
	return nil
}
