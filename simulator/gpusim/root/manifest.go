package root

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Paths below the root.
const (
	manifestPath = OwnDir + "/manifest.json"
	lockPath     = OwnDir + "/lock"
)

// Phases of a root.
const (
	phaseChanging = "changing" // a gpusim is at work, or was killed
	phaseComplete = "complete"
)

// Manifest lists what gpusim made in a root. During a change it lists both the old and
// the new entries.
type Manifest struct {
	Layout  int      `json:"layout"` // 1
	Phase   string   `json:"phase"`
	Profile string   `json:"profile"`
	Machine string   `json:"machine"` // what Up was asked for, a hash
	Version string   `json:"version"` // of the libraries
	Arch    string   `json:"arch"`
	Majors  Majors   `json:"majors"`
	Plain   bool     `json:"plain,omitempty"`
	Parents int      `json:"parents,omitempty"` // folders above the root that were not there before
	Dirs    []string `json:"dirs"`              // those that were not there before, parents first
	Entries []Entry  `json:"entries"`
}

// maxManifest bounds the size of a manifest; a real one has a tenth of it.
const maxManifest = 8 << 20

// readManifest fails with fs.ErrNotExist if the root has none.
func readManifest(root string) (*Manifest, error) {
	path := filepath.Join(root, manifestPath)
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxManifest {
		return nil, fmt.Errorf("%s: %d bytes are too many for a manifest; remove the root by hand", path, info.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove the root by hand", path, err)
	}
	m.adopt(root)
	return m, nil
}

// madeModes lists the modes of capability nodes that others create: the simulated NVML,
// and nvidia-modprobe, or the toolkit in its place.
var madeModes = []uint32{0o444, 0o666}

// adopt adds capability nodes that others created: the simulated NVML, when a client
// partitioned a GPU through it, or the toolkit after that. gpusim removes those too.
func (m *Manifest) adopt(root string) {
	const dir = "dev/nvidia-caps"
	listed := map[string]bool{}
	for _, e := range m.Entries {
		listed[e.Path] = true
	}
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		return // there are none
	}
	for _, found := range entries {
		var minor uint32
		if n, err := fmt.Sscanf(found.Name(), "nvidia-cap%d", &minor); n != 1 || err != nil {
			continue
		}
		for _, mode := range madeModes {
			e := Entry{Path: dir + "/" + found.Name(), Kind: Node, Mode: mode, Major: m.Majors.Caps, Minor: minor, Plain: m.Plain}
			if !listed[e.Path] && e.Is(root) {
				m.Entries = append(m.Entries, e)
			}
		}
	}
}

// parseManifest refuses paths that lead out of the root, because gpusim removes what
// the manifest lists.
func parseManifest(data []byte) (*Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, err
	}
	if m.Layout != 1 {
		return nil, fmt.Errorf("layout %d is not known to this program", m.Layout)
	}
	for _, e := range m.Entries {
		if !filepath.IsLocal(e.Path) || e.Path == "." {
			return nil, fmt.Errorf("entry %q leads out of the root", e.Path)
		}
	}
	for _, d := range m.Dirs {
		if !filepath.IsLocal(d) {
			return nil, fmt.Errorf("directory %q leads out of the root", d)
		}
	}
	return &m, nil
}

func (m *Manifest) write(root string) error { return m.writeIn(filepath.Join(root, OwnDir)) }

func (m *Manifest) writeIn(dir string) error {
	data, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, filepath.Base(manifestPath))
	temp := Temporary(path)
	if err := os.WriteFile(temp, append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}
