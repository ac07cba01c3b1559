// Simkernel is gpu-driver on a SIMULATED kernel, for test clusters whose nodes are containers that
// share the kernel of one machine. A folder of the node stands for the kernel: system calls for modules read
// and write files in it, and its proc and sys stand for /proc and /sys. Tests write the kernel's release
// and the GPUs there. None of the modules' code runs.
//
// Called with the argument dtk-build-driver it acts as the side-car container with OpenShift's Driver
// Toolkit, which builds kernel modules. If the driver's container hands over sources with NVIDIA's script
// dtk-build-driver, it runs that script instead of gpu-driver: so tests see that the driver also works
// with a side-car that knows NVIDIA's protocol and not ours.
package main

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/driver/cli"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/driver/toolkit"
	"github.com/gpuready/gpuready/internal/program"
)

// folder holds the kernel of a node:
//
//	release                   the output of uname -r
//	proc/modules              loaded modules
//	sys/module/<name>/        version, srcversion, notes
//	sys/bus/pci/devices/      the GPUs
const folder = "/run/nvidia/kernel"

// NVIDIA's script among the driver's sources, and the file that shows that the sources are complete.
const (
	script   = toolkit.Dir + "/sources/dtk-build-driver"
	prepared = toolkit.Dir + "/dir_prepared"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "dtk-build-driver" {
		if err := execScript(); err != nil {
			fmt.Fprintln(os.Stderr, "simkernel:", err)
			os.Exit(1)
		}
		// There is no script: gpu-driver's own command dtk-build-driver runs below.
	}
	kernel.Host = kernel.System{Proc: folder + "/proc", Sys: folder + "/sys", Calls: simulated{}}
	os.Exit(program.RunWithSignals(func(ctx context.Context) int {
		return cli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}))
}

// execScript waits until the sources are complete, and replaces the process with the script among them.
// It returns nil if there is none.
func execScript() error {
	for {
		if _, err := os.Stat(prepared); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if _, err := os.Stat(script); err != nil {
		return nil //nolint:nilerr // there is no script
	}
	return unix.Exec("/bin/bash", []string{"bash", script}, os.Environ())
}

// simulated implements the kernel's system calls on the folder.
type simulated struct{}

func (simulated) Uname(u *unix.Utsname) error {
	release, err := os.ReadFile(folder + "/release")
	if err != nil {
		return err
	}
	copy(u.Release[:], strings.TrimSpace(string(release)))
	copy(u.Version[:], "#1 SMP SIMULATED")
	return nil
}

func (s simulated) FinitModule(fd int, _ string, flags int) error {
	if flags != 0 { // as for a compressed module
		return unix.EOPNOTSUPP
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	return s.InitModule(data, "")
}

func (s simulated) InitModule(data []byte, _ string) error {
	m, err := kernel.ReadInfo(strings.NewReader(string(data)), int64(len(data)))
	if err != nil {
		return unix.ENOEXEC
	}
	var u unix.Utsname
	if err := s.Uname(&u); err != nil {
		return err
	}
	if m.Release() != unix.ByteSliceToString(u.Release[:]) {
		return unix.ENOEXEC
	}
	loaded, err := kernel.Host.ReadLoaded()
	if err != nil {
		return err
	}
	if _, there := loaded[m.Name]; there {
		return unix.EEXIST
	}
	for _, d := range m.Depends {
		l, there := loaded[d]
		if !there {
			return unix.ENOENT
		}
		l.Holders = append(l.Holders, m.Name)
		loaded[d] = l
	}
	if err := writeSysfs(m, data); err != nil {
		return err
	}
	if loaded == nil {
		loaded = map[string]kernel.Loaded{}
	}
	loaded[m.Name] = kernel.Loaded{Name: m.Name}
	return writeModules(loaded)
}

func (simulated) DeleteModule(name string, _ int) error {
	loaded, err := kernel.Host.ReadLoaded()
	if err != nil {
		return err
	}
	l, there := loaded[name]
	switch {
	case !there:
		return unix.ENOENT
	case len(l.Holders) > 0:
		return unix.EWOULDBLOCK
	}
	delete(loaded, name)
	for other, l := range loaded {
		l.Holders = slices.DeleteFunc(l.Holders, func(holder string) bool { return holder == name })
		loaded[other] = l
	}
	return errors.Join(writeModules(loaded), os.RemoveAll(filepath.Join(kernel.Host.Sys, "module", name)))
}

// writeSysfs writes what sysfs shows of a loaded module: its versions and build ID.
func writeSysfs(m kernel.Info, data []byte) error {
	files := map[string]string{"version": m.Version, "srcversion": m.SrcVersion}
	f, err := elf.NewFile(strings.NewReader(string(data)))
	if err != nil {
		return err
	}
	if s := f.Section(".note.gnu.build-id"); s != nil {
		note, err := s.Data()
		if err != nil {
			return err
		}
		files["notes/.note.gnu.build-id"] = string(note)
	}
	for name, text := range files {
		at := filepath.Join(kernel.Host.Sys, "module", m.Name, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// writeModules replaces the folder's proc/modules atomically, so readers never see a part of it.
func writeModules(loaded map[string]kernel.Loaded) error {
	var text strings.Builder
	for name, l := range loaded {
		holders := "-"
		if len(l.Holders) > 0 {
			holders = strings.Join(l.Holders, ",") + ","
		}
		fmt.Fprintf(&text, "%s 16384 %d %s Live 0x0000000000000000\n", name, len(l.Holders), holders)
	}
	at := filepath.Join(kernel.Host.Proc, "modules")
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.WriteFile(at+".new", []byte(text.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(at+".new", at)
}
