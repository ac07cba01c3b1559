package claim

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpuready/gpuready/dra/inventory"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Version is the version of the record of prepared claims.
const Version = 1

// maxCheckpoint bounds the record: a claim takes some 300 bytes for each device.
const maxCheckpoint = 8 << 20

// Checkpoint records the claims that are prepared in this boot.
type Checkpoint struct {
	BootID string     `json:"bootID"`
	Claims []Prepared `json:"claims"` // sorted by UID
	// Partitions lists the partitions that this driver has created for claims, or may have: each is
	// recorded before it is created, and until it is destroyed. No other is ever destroyed.
	Partitions []OwnPartition `json:"partitions,omitempty"`
	// Destroyed lists the partitions that were destroyed a short time ago: the device plugin's state may
	// have their MIG devices still.
	Destroyed []DestroyedPartition `json:"destroyed,omitempty"`
	// Serve and SwitchID are of the device plugin's state that was followed last. "": none in this
	// boot. Kept lists the devices that this driver has offered, where Serve is ServeDRA, and those of
	// them that it has not released since, where Serve is ServePlugin.
	Serve    string       `json:"serve,omitempty"`
	SwitchID string       `json:"switchID,omitempty"`
	Kept     []KeptDevice `json:"kept,omitempty"`
	// Lost reports that an earlier record of claims could not be read, and that no change of who offers
	// the GPUs was followed since.
	Lost bool `json:"lost,omitempty"`
}

// OwnPartition is a partition of this driver.
type OwnPartition struct {
	gpu.Placement
	Claim types.UID `json:"claim"`
}

// DestroyedPartition is a partition of this driver that was destroyed, or whose creation failed, at a time.
type DestroyedPartition struct {
	gpu.Placement
	Time time.Time `json:"time"`
}

// Prepared is a claim that is prepared.
type Prepared struct {
	UID       types.UID        `json:"uid"`
	Namespace string           `json:"namespace"`
	Name      string           `json:"name"`
	Devices   []PreparedDevice `json:"devices"`
}

// PreparedDevice is a device of a claim.
type PreparedDevice struct {
	Request string   `json:"request"`
	Name    string   `json:"name"` // in the pool
	UUID    gpu.UUID `json:"uuid"`
	Parent  gpu.UUID `json:"parent,omitempty"` // of a MIG device
	// Placement is the place of a partition that was created for the claim; nil: another device.
	Placement *gpu.Placement `json:"placement,omitempty"`
	Admin     bool           `json:"admin,omitempty"` // administrative access, which holds nothing
	CDI       string         `json:"cdi"`
	// Of a share of a device that several claims may have; zero: the claim has the whole device.
	ShareID types.UID `json:"shareID,omitempty"`
	Shares  int       `json:"shares,omitempty"` // number of shares that it counts for
	MPS     string    `json:"mps,omitempty"`    // CDI name of what a client of its MPS control daemon needs
}

// result returns the devices for the kubelet.
func (p Prepared) result(pool string) []kubeletplugin.Device {
	devices := make([]kubeletplugin.Device, 0, len(p.Devices))
	for _, d := range p.Devices {
		one := kubeletplugin.Device{Requests: []string{d.Request}, PoolName: pool, DeviceName: d.Name, CDIDeviceIDs: []string{d.CDI}}
		if d.MPS != "" {
			one.CDIDeviceIDs = append(one.CDIDeviceIDs, d.MPS)
		}
		if d.ShareID != "" {
			one.ShareID = &d.ShareID
		}
		devices = append(devices, one)
	}
	return devices
}

// isPrepared reports whether the claim has got the device before.
func (d PreparedDevice) isPrepared() bool { return d.CDI != "" }

// hardware returns what the device occupies.
func (d PreparedDevice) hardware() inventory.Hardware {
	return inventory.Hardware{UUID: d.UUID, Parent: d.Parent, Placement: d.Placement, Partition: d.Placement != nil}
}

// Find returns a claim; nil: it is not prepared.
func (c *Checkpoint) Find(uid types.UID) *Prepared {
	for i := range c.Claims {
		if c.Claims[i].UID == uid {
			return &c.Claims[i]
		}
	}
	return nil
}

// Put records a claim, and reports whether that changed the record.
func (c *Checkpoint) Put(p Prepared) (changed bool) {
	if known := c.Find(p.UID); known != nil {
		if reflect.DeepEqual(*known, p) {
			return false
		}
		*known = p
		return true
	}
	c.Claims = append(c.Claims, p)
	slices.SortFunc(c.Claims, func(a, b Prepared) int { return bytes.Compare([]byte(a.UID), []byte(b.UID)) })
	return true
}

// Remove forgets a claim, and reports whether it was recorded.
func (c *Checkpoint) Remove(uid types.UID) bool {
	before := len(c.Claims)
	c.Claims = slices.DeleteFunc(c.Claims, func(p Prepared) bool { return p.UID == uid })
	return len(c.Claims) < before
}

func (c *Checkpoint) hasClaim(name types.NamespacedName) bool {
	return slices.ContainsFunc(c.Claims, func(p Prepared) bool { return p.Namespace == name.Namespace && p.Name == name.Name })
}

// leftovers returns the partitions of claims that are not prepared.
func (c *Checkpoint) leftovers() (all []OwnPartition) {
	for _, o := range c.Partitions {
		if c.Find(o.Claim) == nil {
			all = append(all, o)
		}
	}
	return all
}

// holdings returns the devices that the claims hold, and the places of partitions that are still to be
// destroyed: their MIG devices may be there.
func (c *Checkpoint) holdings() []holding {
	var all []holding
	for _, p := range c.Claims {
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		for _, d := range p.Devices {
			if !d.Admin {
				all = append(all, holding{uid: p.UID, claim: name, hardware: d.hardware(), shares: d.Shares, by: fmt.Sprintf("claim %s (%s)", name, p.UID), namespace: p.Namespace, kind: anotherClaim})
			}
		}
	}
	for _, o := range c.leftovers() {
		all = append(all, holding{uid: o.Claim, hardware: inventory.Hardware{Parent: o.GPU, Placement: &o.Placement, Partition: true},
			by: fmt.Sprintf("what is left of a partition for claim %s, which cannot be destroyed", o.Claim), kind: "what is left of a partition, which cannot be destroyed yet"})
	}
	return all
}

// AdminAccess returns the devices of claims that have them with administrative access only, at most
// nodestate.MaxAdminAccess.
func (c *Checkpoint) AdminAccess() []nodestate.ClaimedDevice {
	var all []nodestate.ClaimedDevice
	for _, p := range c.Claims {
		for _, d := range p.Devices {
			one := nodestate.ClaimedDevice{Claim: p.Namespace + "/" + p.Name, GPU: d.UUID}
			holds := slices.ContainsFunc(p.Devices, func(other PreparedDevice) bool { return other.UUID == d.UUID && !other.Admin })
			if d.Admin && !holds && len(all) < nodestate.MaxAdminAccess && !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	return all
}

// Store keeps the record in a file.
type Store struct {
	Path   string
	BootID string // of this boot
}

// file is the content of the file. The checksum is that of the bytes of Data.
type file struct {
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Data     json.RawMessage `json:"data"`
}

// errDamaged means that a file is no record of prepared claims that this version can read.
var errDamaged = errors.New("no record of prepared claims that can be read")

// Load returns the record of this boot. After a restart of the machine it is empty: the kubelet
// prepares each claim again. A file that is no record is set aside and replaced by an empty record; who
// holds what is then known from the kubelet's account alone. The record must be locked.
func (s Store) Load(log *slog.Logger) (*Checkpoint, error) {
	empty := &Checkpoint{BootID: s.BootID}
	c, err := s.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return empty, nil
	case errors.Is(err, errDamaged), errors.Is(err, record.ErrInvalid):
		empty.Lost = true
		return empty, s.setAside(log, empty, err)
	case err != nil:
		return nil, fmt.Errorf("read the record of prepared claims: %w", err)
	case c.BootID != s.BootID:
		log.Info("the machine was restarted: the kubelet has claims prepared again", "path", s.Path, "claims", len(c.Claims))
		return empty, nil
	}
	return c, nil
}

// read returns the record, of whatever boot.
func (s Store) read() (*Checkpoint, error) {
	data, err := record.Read(s.Path, maxCheckpoint)
	if err != nil {
		return nil, err
	}
	return decode(data)
}

// setAside replaces a file that is no record, and keeps it under another name, so that a person can look at it. It is
// there until the new one is: where there is none, no claim was prepared.
func (s Store) setAside(log *slog.Logger, instead *Checkpoint, why error) error {
	bad := s.Path + ".bad-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	undo := func() error { return os.Remove(bad) }
	err := os.Link(s.Path, bad)
	if err != nil { // such as a folder, which Save cannot replace either
		err = os.Rename(s.Path, bad)
		undo = func() error { return os.Rename(bad, s.Path) }
	}
	if err != nil {
		return fmt.Errorf("set aside what is no record of prepared claims (%w): %w", why, err)
	}
	if err := s.Save(instead); err != nil {
		return errors.Join(err, undo())
	}
	log.Error("the record of prepared claims cannot be used and was set aside; until it is complete again, the kubelet's account of its pods counts, too", "path", bad, "message", why.Error())
	return nil
}

// decode reads a file's content.
func decode(data []byte) (*Checkpoint, error) {
	var f file
	if err := strictJSON(data, &f); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if f.Version != Version {
		return nil, fmt.Errorf("%w: version %d, only %d is known", errDamaged, f.Version, Version)
	}
	if want := checksum(f.Data); f.Checksum != want {
		return nil, fmt.Errorf("%w: its checksum is %.80q, and its content has %q", errDamaged, f.Checksum, want)
	}
	// A later release may add fields without a new version, and run beside this one during an update.
	var c Checkpoint
	if err := json.Unmarshal(f.Data, &c); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	seen := map[types.UID]bool{}
	for i, p := range c.Claims {
		if p.UID == "" || seen[p.UID] {
			return nil, fmt.Errorf("%w: claims[%d].uid is missing or listed twice", errDamaged, i)
		}
		seen[p.UID] = true
		for j, d := range p.Devices {
			if d.UUID == "" { // it would overlap with every GPU
				return nil, fmt.Errorf("%w: claims[%d].devices[%d].uuid is missing", errDamaged, i, j)
			}
		}
	}
	return &c, nil
}

// strictJSON decodes a whole document without unknown fields.
func strictJSON(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) { // More would allow a bracket
		return errors.New("more than one document")
	}
	return nil
}

// encode returns a file's content.
func encode(c *Checkpoint) ([]byte, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return json.Marshal(file{Version: Version, Checksum: checksum(data), Data: data})
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Save replaces the file. After an error the old one is unchanged.
func (s Store) Save(c *Checkpoint) error {
	c.dropSettled(time.Now())
	data, err := encode(c)
	if err != nil {
		return fmt.Errorf("encode %s: %w", s.Path, err)
	}
	if len(data) >= maxCheckpoint {
		return fmt.Errorf("the record of prepared claims has %d bytes, no more than %d may be written", len(data), maxCheckpoint-1)
	}
	return record.Write(s.Path, append(data, '\n'))
}
