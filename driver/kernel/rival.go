package kernel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Rival is a GPU that another driver than NVIDIA's holds, such as nouveau, which the kernels of most
// distributions load at boot.
type Rival struct {
	Address  string
	Driver   string   // as sysfs calls it: "nouveau", "NovaCore"
	Module   string   // of the driver: "nova_core"; "" if it is built into the kernel
	Consoles []string // of the kernel that may be shown on the GPU: folders in sysfs
	Held     string   // why the GPU cannot be taken: who has its devices open; "": it can
}

// passedOn reports whether a driver holds devices for a virtual machine or another user by intention.
func passedOn(driver string) bool {
	return strings.Contains(driver, "vfio") || strings.Contains(driver, "uio") || slices.Contains([]string{"pci-stub", "pciback", "xen-pciback"}, driver)
}

// isRival reports whether a driver of a GPU is in the way of NVIDIA's.
func isRival(driver string) bool { return driver != "" && driver != "nvidia" && !passedOn(driver) }

// FindRivals returns those of some GPUs that another driver holds.
func (s System) FindRivals(gpus []host.PCIGPU) []Rival {
	var rivals []Rival
	for _, g := range gpus {
		if !isRival(g.Driver) {
			continue
		}
		r := Rival{Address: string(g.Address), Driver: g.Driver}
		dir := filepath.Join(s.Sys, "bus/pci/devices", r.Address)
		if module, err := os.Readlink(filepath.Join(dir, "driver/module")); err == nil {
			r.Module = filepath.Base(module)
		}
		if shown, _ := filepath.Glob(filepath.Join(dir, "graphics/fb*")); len(shown) > 0 {
			r.Consoles = s.listConsoles()
		}
		r.Held = s.explainHeld(dir)
		rivals = append(rivals, r)
	}
	return rivals
}

// listConsoles returns the consoles of the kernel that are shown on frame buffers.
func (s System) listConsoles() []string {
	var shown []string
	all, _ := filepath.Glob(filepath.Join(s.Sys, "class/vtconsole/vtcon*"))
	for _, dir := range all {
		name, err := os.ReadFile(filepath.Join(dir, "name")) // "(M) frame buffer device"
		bound, boundErr := os.ReadFile(filepath.Join(dir, "bind"))
		if err == nil && boundErr == nil && strings.Contains(string(name), "frame buffer") && strings.TrimSpace(string(bound)) == "1" {
			shown = append(shown, dir)
		}
	}
	return shown
}

// explainHeld names the processes that have devices of a GPU open, /dev/dri/* and frame buffers, or says why that is not
// known. dir is the GPU's folder in sysfs.
func (s System) explainHeld(dir string) string {
	numbers := map[deviceNumber]bool{}
	for _, pattern := range []string{"drm/*/dev", "graphics/*/dev"} {
		files, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, file := range files {
			number, err := readNumber(file)
			if err != nil {
				return "it is not known who uses it: " + err.Error()
			}
			numbers[number] = true
		}
	}
	if len(numbers) == 0 {
		return ""
	}
	users, err := s.findHolders(nil, func(n deviceNumber) bool { return numbers[n] })
	switch {
	case len(users) > 0:
		return "it is in use by " + describeUsers(users)
	case err != nil:
		return "it is not known who uses it: " + err.Error()
	case !s.seesNode():
		return "it is not known who uses it; run this container with hostPID: true"
	}
	return ""
}

// readNumber reads a device's number in sysfs: "226:0".
func readNumber(file string) (n deviceNumber, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return n, err
	}
	if _, err := fmt.Sscanf(string(data), "%d:%d", &n.major, &n.minor); err != nil {
		return n, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// sysfsTimeout bounds a write to sysfs. A driver whose GPU does not answer may take for ever to let go of it.
const sysfsTimeout = 30 * time.Second

// Unbind takes a GPU from the driver that holds it, after the kernel's consoles on it. The consoles go on on other
// frame buffers, if there are any.
func (s System) Unbind(ctx context.Context, r Rival, log *slog.Logger) error {
	if r.Held != "" {
		return s.rivalError(r, nil, r.Held)
	}
	for _, console := range r.Consoles {
		if err := writeAttribute(ctx, filepath.Join(console, "bind"), "0"); err != nil {
			return s.rivalError(r, err, fmt.Sprintf("the kernel's console stays on it: %v", err))
		}
	}
	if err := writeAttribute(ctx, filepath.Join(s.Sys, "bus/pci/drivers", r.Driver, "unbind"), r.Address); err != nil {
		return s.rivalError(r, err, fmt.Sprintf("it does not let go of it: %v", err))
	}
	log.Info("GPU taken from another driver", "gpu", r.Address, "driver", r.Driver)
	if others, _ := filepath.Glob(filepath.Join(s.Sys, "class/graphics/fb[0-9]*")); len(others) > 0 {
		for _, console := range r.Consoles {
			if err := writeAttribute(ctx, filepath.Join(console, "bind"), "1"); err != nil {
				log.Warn("the kernel's console does not return to the other frame buffers", "err", err)
			}
		}
	}
	return nil
}

// rivalModules lists the modules that claim every GPU of NVIDIA's, in the order in which they can be unloaded.
var rivalModules = []string{"nova_drm", "nova_core", "nouveau"}

// UnloadRivals unloads the modules that would claim GPUs that are found again, for example after a reset of the
// bus. One that is in use stays.
func (s System) UnloadRivals(log *slog.Logger) {
	loaded, err := s.ReadLoaded()
	if err != nil {
		return
	}
	for _, name := range rivalModules {
		if _, ok := loaded[name]; !ok {
			continue
		}
		if err := s.Unload(name); err != nil {
			log.Info("the module of another driver stays", "module", name, "err", err)
			continue
		}
		log.Info("module unloaded", "module", name)
	}
}

// Probe offers a GPU that no driver holds to the loaded drivers.
func (s System) Probe(ctx context.Context, address string) error {
	if _, err := os.Lstat(filepath.Join(s.Sys, "bus/pci/devices", address, "driver")); err == nil {
		return nil
	}
	return writeAttribute(ctx, filepath.Join(s.Sys, "bus/pci/drivers_probe"), address)
}

// writeAttribute writes to a file of sysfs.
func writeAttribute(ctx context.Context, file, text string) error {
	ctx, cancel := context.WithTimeout(ctx, sysfsTimeout)
	defer cancel()
	written := make(chan error, 1)
	go func() { // it waits in the kernel, and cannot be cancelled
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(text)
			err = errors.Join(err, f.Close())
		}
		written <- err
	}()
	select {
	case err := <-written:
		return err
	case <-ctx.Done():
		return fmt.Errorf("write %s: the kernel has not answered after %v", file, sysfsTimeout)
	}
}

func (s System) rivalError(r Rival, err error, why string) error {
	modules := []string{"nouveau"}
	if r.Module != "" {
		modules = []string{r.Module}
	}
	if strings.HasPrefix(r.Module, "nova") {
		modules = []string{"nova_core", "nova_drm"}
	}
	return newError(ReasonNouveauInTheWay, "nvidia", err, "the kernel's driver %s has GPU %s: %s. To keep it away for good: %s",
		r.Driver, r.Address, why, adviseDeny(modules, s.readOSRelease()))
}

// describeBindings names the driver of each NVIDIA GPU on the PCI bus; "" if there is none.
func (s System) describeBindings() string {
	root, err := host.Open(s.Sys)
	if err != nil {
		return ""
	}
	defer root.Close() //nolint:errcheck // it is only read
	var words []string
	for _, g := range root.GPUs("/bus/pci/devices") {
		driver := "no driver"
		if g.Driver != "" {
			driver = g.Driver
		}
		words = append(words, string(g.Address)+" is bound to "+driver)
	}
	return strings.Join(words[:min(len(words), 16)], ", ")
}

// PassedOn names the GPUs that are held for virtual machines; "": none.
func PassedOn(gpus []host.PCIGPU) string {
	var words []string
	for _, g := range gpus {
		if passedOn(g.Driver) {
			words = append(words, string(g.Address)+" by "+g.Driver)
		}
	}
	return record.Clean(strings.Join(words, ", "), 512)
}
