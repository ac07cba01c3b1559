package kernel

import (
	"debug/elf"
	"fmt"
	"runtime"

	"github.com/gpuready/gpuready/internal/host"
)

// machines holds the ELF machines of modules by GOARCH.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// CheckBuilt verifies built modules in a folder, one file "<name>.ko" each. They have to be for
// a kernel release, a driver version and this machine's processor. "" is any version.
func CheckBuilt(dir string, names []string, release, version string) error {
	root, err := host.Open(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it is only read
	for _, name := range names {
		m, err := ReadModule(root, "/"+name+".ko")
		switch {
		case err != nil:
			return err
		case m.Name != NormalizeName(name):
			return fmt.Errorf("%s.ko is the module %s", name, truncateText(m.Name))
		case m.Machine != machines[runtime.GOARCH]:
			return fmt.Errorf("%s.ko is compiled for %v, not for %v", name, m.Machine, machines[runtime.GOARCH])
		case m.Release() != release:
			return fmt.Errorf("%s.ko is built for kernel %s, not for %s", name, truncateText(m.Release()), release)
		case version != "" && m.Version != version:
			return fmt.Errorf("%s.ko has version %q, not %s", name, truncateText(m.Version), version)
		}
	}
	return nil
}
