package kernel

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Loaded is a module in the kernel, as /proc/modules and /sys/module show it.
type Loaded struct {
	Name       string
	References int      // count of references by modules, open files and the like
	Holders    []string // modules that use it
	State      string   // "Live", "Loading", "Unloading"
	Version    string
	SrcVersion string
	BuildID    string
}

// IsSameBuild reports whether the module in the kernel was loaded from the module in a
// file, or from another build of the same sources. A module without any build identity
// matches no other.
func (l Loaded) IsSameBuild(i Info) bool {
	if l.State != "Live" || l.Name != i.Name || l.Version != i.Version || l.SrcVersion != i.SrcVersion || l.BuildID != i.BuildID {
		return false
	}
	return i.BuildID != "" || i.SrcVersion != ""
}

// ReadLoaded returns the modules that are loaded in the kernel, by name.
func (s System) ReadLoaded() (map[string]Loaded, error) {
	data, err := os.ReadFile(filepath.Join(s.Proc, "modules"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // a kernel without module support
	}
	if err != nil {
		return nil, err
	}
	all := map[string]Loaded{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		l, err := parseLoaded(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(s.Proc, "modules"), err)
		}
		all[l.Name] = l
	}
	return all, lines.Err()
}

// parseLoaded parses a line of /proc/modules: name, size, references, holders, state, address
// (proc_modules(5)).
func parseLoaded(line string) (Loaded, error) {
	fields := strings.Fields(line)
	if len(fields) < 5 {
		return Loaded{}, fmt.Errorf("%q is not a module", truncateText(line))
	}
	references, err := strconv.Atoi(fields[2])
	if err != nil {
		references = 0 // "-": the kernel cannot unload modules
	}
	l := Loaded{Name: fields[0], References: references, State: fields[4]}
	if fields[3] != "-" {
		for holder := range strings.SplitSeq(strings.TrimSuffix(fields[3], ","), ",") {
			if holder != "[permanent]" {
				l.Holders = append(l.Holders, holder)
			}
		}
	}
	return l, nil
}

// Describe adds a loaded module's build identity from /sys/module.
func (s System) Describe(l Loaded) Loaded {
	dir := filepath.Join(s.Sys, "module", l.Name)
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(data))
	}
	l.Version, l.SrcVersion = read("version"), read("srcversion")
	if note, err := os.ReadFile(filepath.Join(dir, "notes/.note.gnu.build-id")); err == nil {
		l.BuildID = parseBuildID(note, binary.NativeEndian.Uint32)
	}
	return l
}
