package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/gpuready/gpuready/simulator/gpusim/root"
	"github.com/gpuready/gpuready/simulator/profile"
	"github.com/gpuready/gpuready/simulator/state"
)

// machine holds the flags that describe the machine to simulate.
type machine struct {
	profile   string
	options   profile.Options
	layouts   string // of MIG, as serve takes them
	libraries string
}

// machineFlags declares the flags of a machine.
func (c *call) machineFlags() *machine {
	m := &machine{}
	c.StringVar(&m.profile, "profile", "", "a machine that gpusim profiles lists, or a file (with a / or ending in .yaml)")
	c.IntVar(&m.options.GPUs, "gpus", 0, "number of GPUs; 0: as in the profile")
	c.StringVar(&m.options.DriverVersion, "driver-version", "", "version of the libraries (default the profile's, "+profile.DefaultDriver+")")
	c.StringVar(&m.options.ModuleVersion, "module-version", "", "version of the kernel module, if it differs from the libraries'")
	c.StringVar(&m.options.Seed, "seed", "", "other UUIDs and serial numbers for another seed: for several nodes with one profile")
	c.StringVar(&m.libraries, "lib-dir", "", "folder with the built libraries (default lib beside this program, or ../lib/gpusim)")
	c.Env["profile"], c.Env["lib-dir"] = "GPUSIM_PROFILE", "GPUSIM_LIB_DIR"
	return m
}

// spec returns the root that the flags describe.
func (m *machine) spec() (root.Spec, error) {
	if m.profile == "" {
		return root.Spec{}, usagef("--profile is missing; gpusim profiles lists them")
	}
	for flag, v := range map[string]string{"driver-version": m.options.DriverVersion, "module-version": m.options.ModuleVersion} {
		if v == "" {
			continue
		}
		if err := profile.CheckVersion(v); err != nil {
			return root.Spec{}, usagef("--%s: %w", flag, err)
		}
	}
	p, err := profile.Load(m.profile)
	if err != nil {
		return root.Spec{}, err
	}
	if m.options.DriverVersion == "" {
		m.options.DriverVersion = p.Driver.Version
	}
	s, err := p.State(m.options)
	if err != nil {
		return root.Spec{}, err
	}
	if err := m.partition(s); err != nil {
		return root.Spec{}, usagef("--mig: %w", err)
	}
	libraries := m.libraries
	if libraries == "" {
		if libraries, err = libraryFolder(); err != nil {
			return root.Spec{}, err
		}
	}
	return root.Spec{State: s, Profile: m.profile, Version: m.options.DriverVersion, Arch: runtime.GOARCH, Libraries: libraries}, nil
}

// partition partitions the GPUs by the layouts in --mig, [GPU=]LAYOUT;…
func (m *machine) partition(s *state.State) error {
	if m.layouts == "" {
		return nil
	}
	for part := range strings.SplitSeq(m.layouts, ";") {
		which, text, named := strings.Cut(part, "=")
		if !named {
			which, text = "all", part
		}
		layout, err := profile.ParseLayout(text)
		if err != nil {
			return err
		}
		found := false
		for i, g := range s.GPUs() {
			if which != strconv.Itoa(i) && (which != "all" || g.MigSupported == 0) {
				continue
			}
			found = true
			if err := profile.EnableMIG(g, layout); err != nil {
				return fmt.Errorf("GPU %d: %w", i, err)
			}
		}
		if !found {
			return fmt.Errorf("%q: of the %d GPUs none is meant that can do MIG; give the GPU's number, or all", part, s.Ngpus)
		}
	}
	return nil
}

// libraryFolder returns the folder of the built libraries: beside the program, as make
// leaves them, or as packages and images install them.
func libraryFolder() (string, error) {
	self, err := os.Executable() // links resolved
	if err != nil {
		return "", fmt.Errorf("find the folder of this program: %w; name the libraries' with --lib-dir", err)
	}
	beside := filepath.Join(filepath.Dir(self), "lib")
	installed := filepath.Join(filepath.Dir(self), "../lib/gpusim")
	_, err = os.Stat(filepath.Join(beside, "libnvidia-ml.so"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(installed, "libnvidia-ml.so")); err == nil {
			return installed, nil
		}
	}
	return beside, nil
}
