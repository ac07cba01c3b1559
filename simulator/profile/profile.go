// Package profile describes simulated machines as data: the GPUs, their links, and the
// values that NVML reports for each. A Profile is read from YAML, embedded or in a file,
// and becomes the initial state of a simulated driver. EnableMIG partitions a GPU of that
// state, as far as its model allows.
package profile

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/simulator/state"
)

// The default driver of a profile that names none.
const (
	DefaultDriver = "580.95.05"
	DefaultCUDA   = "13.0"
)

// maxBytes bounds a profile file; the largest that record can write has a tenth of it.
const maxBytes = 1 << 20

// Profile is one machine.
type Profile struct {
	Version     int              `json:"version"` // 1
	Name        string           `json:"name"`
	Description string           `json:"description"`
	Driver      Driver           `json:"driver,omitzero"`
	Count       int              `json:"count,omitempty"` // GPUs that it has unless another number is asked for; 0: all
	NUMA        []string         `json:"numa,omitempty"`  // CPUs of each NUMA node, "0-55,112-167"
	Models      map[string]Model `json:"models,omitempty"`
	GPUs        []GPU            `json:"gpus"`
	NVLink      []Fabric         `json:"nvlink,omitempty"`   // the first whose GPUs suffice is in force
	Topology    [][]string       `json:"topology,omitempty"` // PCIe levels, where Bridge and Switch do not tell
}

// Driver is the driver that a machine comes with.
type Driver struct {
	Version string `json:"version,omitempty"`
	CUDA    string `json:"cuda,omitempty"` // highest version that it supports, "13.0"
}

// GPU is one GPU of the machine and its place.
type GPU struct {
	Model  string `json:"model"` // a key of Models, or a model that comes with the program
	PCI    string `json:"pci"`   // "0000:1b:00.0"
	NUMA   *int   `json:"numa,omitempty"`
	Bridge int    `json:"bridge,omitempty"` // its PCIe host bridge, any number
	Switch int    `json:"switch,omitempty"` // its PCIe switch, any number; 0: none
	UUID   string `json:"uuid,omitempty"`   // made up if absent
	Serial string `json:"serial,omitempty"` // made up if absent
	Minor  *int   `json:"minor,omitempty"`  // its index if absent
	Links  []Link `json:"links,omitempty"`  // where it was recorded; else NVLink tells
}

// Link is one recorded NVLink.
type Link struct {
	Active     bool   `json:"active,omitempty"`
	Version    uint32 `json:"version,omitempty"`
	Speed      uint32 `json:"speed,omitempty"` // MB/s, one direction
	GPU        *int   `json:"gpu,omitempty"`   // index of the GPU at the other end
	RemoteLink int    `json:"remoteLink,omitempty"`
	Switch     string `json:"switch,omitempty"`       // PCI address of the switch at the other end
	SwitchID   ID     `json:"switchDevice,omitempty"` // its device ID
}

// Fabric describes the NVLinks of a machine with up to GPUs GPUs.
type Fabric struct {
	GPUs     int      `json:"gpus"`
	Kind     string   `json:"kind"`               // "none", "mesh" (GPU to GPU) or "switch" (NVSwitch)
	PerPair  int      `json:"perPair,omitempty"`  // links between each two GPUs of a mesh
	Pairs    [][]int  `json:"pairs,omitempty"`    // or links between GPU i and GPU j, as in nvidia-smi topo -m
	Switches []string `json:"switches,omitempty"` // PCI addresses
	SwitchID ID       `json:"switchDevice,omitempty"`
	Boards   []Board  `json:"boards,omitempty"`  // base boards with switches of their own
	Cluster  string   `json:"cluster,omitempty"` // UUID of the domain of several machines that the GPUs belong to
	Clique   uint32   `json:"clique,omitempty"`
}

// Board is a base board, with the GPUs of one NUMA node, that has its own switches.
type Board struct {
	NUMA     int      `json:"numa"`
	Switches []string `json:"switches"`
}

//go:embed data
var data embed.FS

// Names returns the names of the embedded profiles, sorted.
func Names() []string {
	entries, err := data.ReadDir("data/profiles")
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	slices.Sort(names)
	return names
}

// Get returns a profile that comes with the program.
func Get(name string) (*Profile, error) {
	if !slices.Contains(Names(), name) {
		return nil, fmt.Errorf("unknown profile %q; there are %s, and --profile also takes a file", name, strings.Join(Names(), ", "))
	}
	file := path.Join("data/profiles", name+".yaml")
	text, err := data.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Decode(text, file)
}

// Load reads a profile by its name, or from a file if name has a slash or ends in ".yaml".
func Load(name string) (*Profile, error) {
	if !strings.Contains(name, "/") && !strings.HasSuffix(name, ".yaml") {
		return Get(name)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if info.Size() > maxBytes {
		return nil, fmt.Errorf("profile %s: %d bytes are too many; a profile has at most %d", name, info.Size(), maxBytes)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return Decode(text, name)
}

// Decode reads a profile from YAML; source names its origin, for errors.
func Decode(text []byte, source string) (*Profile, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("profile %s: %d bytes are too many; a profile has at most %d", source, len(text), maxBytes)
	}
	var p Profile
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		return nil, fmt.Errorf("profile %s: %w", source, err)
	}
	if err := p.complete(); err != nil {
		return nil, fmt.Errorf("profile %s: %w", source, err)
	}
	return &p, nil
}

// Encode writes a profile as YAML.
func (p *Profile) Encode() ([]byte, error) { return yaml.Marshal(p) }

var (
	nameForm    = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,23}$`)
	versionForm = regexp.MustCompile(`^[0-9]{1,4}(\.[0-9]{1,4}){1,3}$`)
	uuidForm    = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

// CheckVersion returns an error for an invalid version of a driver. The version becomes
// part of file names.
func CheckVersion(v string) error {
	if !versionForm.MatchString(v) {
		return fmt.Errorf("%q is no driver version such as %s", v, DefaultDriver)
	}
	return nil
}

// complete checks p and fills in the models that come with the program.
func (p *Profile) complete() error {
	switch {
	case p.Version != 1:
		return fmt.Errorf("version: %d is not known; this program reads 1", p.Version)
	case !nameForm.MatchString(p.Name):
		return fmt.Errorf("name: %q must be 1 to 24 of a-z, 0-9 and -", p.Name)
	case len(p.GPUs) == 0 || len(p.GPUs) > state.MaxGPUs:
		return fmt.Errorf("gpus: %d; a machine has 1 to %d", len(p.GPUs), state.MaxGPUs)
	case p.Count < 0 || p.Count > len(p.GPUs):
		return fmt.Errorf("count: %d; the machine has %d GPUs", p.Count, len(p.GPUs))
	}
	if p.Count == 0 {
		p.Count = len(p.GPUs)
	}
	if p.Driver.Version == "" {
		p.Driver.Version = DefaultDriver
	}
	if p.Driver.CUDA == "" {
		p.Driver.CUDA = DefaultCUDA
	}
	if err := CheckVersion(p.Driver.Version); err != nil {
		return fmt.Errorf("driver.version: %w", err)
	}
	for i, cpus := range p.NUMA {
		if _, err := parseCPUs(cpus); err != nil {
			return fmt.Errorf("numa[%d]: %w", i, err)
		}
	}
	return errors.Join(p.completeGPUs(), p.checkNVLink(), p.checkTopology())
}

func (p *Profile) completeGPUs() error {
	models := map[string]Model{}
	var errs []error
	seen := map[string]string{}
	once := func(field, value string) {
		if value != "" && seen[value] != "" {
			errs = append(errs, fmt.Errorf("%s: %q is also %s", field, value, seen[value]))
		}
		seen[value] = field
	}
	for i := range p.GPUs {
		g, field := &p.GPUs[i], fmt.Sprintf("gpus[%d]", i)
		if _, err := parsePCI(g.PCI); err != nil {
			errs = append(errs, fmt.Errorf("%s.pci: %w", field, err))
		}
		if g.UUID != "" && !uuidForm.MatchString(g.UUID) {
			errs = append(errs, fmt.Errorf("%s.uuid: %q does not have the form GPU-8-4-4-4-12", field, g.UUID))
		}
		if g.NUMA != nil && (*g.NUMA < 0 || *g.NUMA >= len(p.NUMA)) {
			errs = append(errs, fmt.Errorf("%s.numa: there is no node %d in numa", field, *g.NUMA))
		}
		if g.Minor != nil && (*g.Minor < 0 || *g.Minor > 254) {
			errs = append(errs, fmt.Errorf("%s.minor: %d is not 0 to 254", field, *g.Minor))
		}
		if len(g.Links) > state.MaxLinks {
			errs = append(errs, fmt.Errorf("%s.links: %d; a GPU has at most %d", field, len(g.Links), state.MaxLinks))
		}
		once(field+".pci", g.PCI)
		once(field+".uuid", g.UUID)
		m, err := p.model(g.Model)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.model: %w", field, err))
			continue
		}
		models[g.Model] = m
	}
	p.Models = models
	return errors.Join(errs...)
}

func (p *Profile) model(name string) (Model, error) {
	m, ok := p.Models[name]
	if !ok {
		if !nameForm.MatchString(name) {
			return m, fmt.Errorf("%q is not the name of a model", name)
		}
		text, err := data.ReadFile(path.Join("data/models", name+".yaml"))
		if err != nil {
			return m, fmt.Errorf("no model is named %q, neither here under models nor in this program", name)
		}
		if err := yaml.UnmarshalStrict(text, &m); err != nil {
			return m, fmt.Errorf("model %s: %w", name, err)
		}
	}
	if err := m.check(); err != nil {
		return m, fmt.Errorf("model %s: %w", name, err)
	}
	return m, nil
}

// ModelByDevice returns the model with the given PCI device ID that comes with
// the program.
func ModelByDevice(id ID) (Model, bool) {
	entries, err := data.ReadDir("data/models")
	if err != nil {
		return Model{}, false
	}
	for _, e := range entries {
		m, err := (&Profile{}).model(strings.TrimSuffix(e.Name(), ".yaml"))
		if err == nil && m.Device == id {
			return m, true
		}
	}
	return Model{}, false
}
