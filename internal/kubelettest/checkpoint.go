package kubelettest

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// CheckpointName is the name of the device manager's checkpoint in Config.Dir.
const CheckpointName = "kubelet_internal_checkpoint"

// maxCheckpoint bounds what is read; a node with 110 pods needs about 100 KiB.
const maxCheckpoint = 16 << 20

// Checkpoint is the content of kubelet_internal_checkpoint: which container
// holds which devices, and which devices were healthy when it was written
// (format of Kubernetes 1.20 and later).
type Checkpoint struct {
	Entries    []CheckpointEntry
	Registered map[string][]string // healthy device IDs by resource
}

// CheckpointEntry lists the devices of one resource that one container holds.
type CheckpointEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     map[int64][]string // by NUMA node, -1: they named none
	AllocResp     []byte             // protobuf of v1beta1.ContainerAllocateResponse
}

// checkpointFile is a Checkpoint as encoded in the file.
type checkpointFile struct {
	Data     checkpointData
	Checksum uint64
}

type checkpointData struct {
	PodDeviceEntries  []CheckpointEntry
	RegisteredDevices map[string][]string
}

// ErrCorrupt means that a checkpoint is damaged: its checksum does not match its
// content. The kubelet then starts without it.
var ErrCorrupt = errors.New("checkpoint is corrupted")

// ParseCheckpoint reads the bytes of a kubelet_internal_checkpoint, also of a real
// kubelet, and verifies its checksum.
func ParseCheckpoint(data []byte) (Checkpoint, error) {
	if len(data) > maxCheckpoint {
		return Checkpoint{}, fmt.Errorf("%w: it has %d bytes, no more than %d are read", ErrCorrupt, len(data), maxCheckpoint)
	}
	var f checkpointFile
	if err := json.Unmarshal(data, &f); err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if sum := f.Data.checksum(); sum != f.Checksum {
		return Checkpoint{}, fmt.Errorf("%w: checksum is %d, of its content %d", ErrCorrupt, f.Checksum, sum)
	}
	return Checkpoint{Entries: f.Data.PodDeviceEntries, Registered: f.Data.RegisteredDevices}, nil
}

// Bytes returns the file content that a kubelet would write.
func (c Checkpoint) Bytes() ([]byte, error) {
	d := checkpointData{PodDeviceEntries: c.Entries, RegisteredDevices: c.Registered}
	return json.Marshal(checkpointFile{Data: d, Checksum: d.checksum()})
}

// checksum is FNV-1a, 32 bits, over the data as go-spew prints it with %#v,
// sorted keys and without methods: k8s.io/apimachinery's dump.ForHash, which
// the kubelet hashes. It is written out here for this one type.
func (d checkpointData) checksum() uint64 {
	h := fnv.New32a()
	d.dump(h)
	return uint64(h.Sum32())
}

func (d checkpointData) dump(w io.Writer) {
	print := func(parts ...string) {
		for _, p := range parts {
			_, _ = io.WriteString(w, p) // a hash and a strings.Builder do not fail
		}
	}
	print("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)")
	print(dumpSlice(d.PodDeviceEntries, func(e CheckpointEntry) string {
		return "{PodUID:(string)" + e.PodUID +
			" ContainerName:(string)" + e.ContainerName +
			" ResourceName:(string)" + e.ResourceName +
			" DeviceIDs:(checkpoint.DevicesPerNUMA)" + dumpMap(e.DeviceIDs, func(n int64) string { return strconv.FormatInt(n, 10) }) +
			" AllocResp:([]uint8)" + dumpSlice(e.AllocResp, func(b byte) string { return strconv.Itoa(int(b)) }) + "}"
	}))
	print(" RegisteredDevices:(map[string][]string)", dumpMap(d.RegisteredDevices, func(s string) string { return s }), "}")
}

func dumpSlice[T any](s []T, one func(T) string) string {
	if s == nil {
		return "<nil>"
	}
	parts := make([]string, len(s))
	for i, v := range s {
		parts[i] = one(v)
	}
	return "[" + strings.Join(parts, " ") + "]"
}

func dumpMap[K int64 | string](m map[K][]string, key func(K) string) string {
	if m == nil {
		return "<nil>"
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, key(k)+":"+dumpSlice(m[k], func(s string) string { return s }))
	}
	return "map[" + strings.Join(parts, " ") + "]"
}

// save writes the checkpoint; k.mu is held. Like the kubelet, it ignores errors.
func (k *Kubelet) save() {
	c := Checkpoint{Registered: map[string][]string{}}
	for name, r := range k.resources {
		ids := slices.Sorted(maps.Keys(r.healthy))
		if ids == nil {
			ids = []string{}
		}
		c.Registered[name] = ids
	}
	for _, a := range k.allocations {
		if a.pending {
			continue
		}
		resp, err := proto.Marshal(a.response)
		if err != nil {
			k.cfg.Log("kubelet: can't marshal allocResp of %s: %v", a.uid, err)
			continue
		}
		c.Entries = append(c.Entries, CheckpointEntry{
			PodUID: a.uid, ContainerName: a.container, ResourceName: a.resource, DeviceIDs: a.numa, AllocResp: resp,
		})
	}
	if err := writeFile(filepath.Join(k.cfg.Dir, CheckpointName), c); err != nil {
		k.cfg.Log("kubelet: failed to write checkpoint file: %v", err)
	}
}

func writeFile(path string, c Checkpoint) error {
	data, err := c.Bytes()
	if err != nil {
		return err
	}
	// Temporary file and rename, as the kubelet's file store.
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path))
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

// restore restores the state from the checkpoint. Without one, or with a damaged one,
// the state is empty.
func (k *Kubelet) restore() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.resources, k.allocations = map[string]*resource{}, nil
	defer k.notify()
	data, err := os.ReadFile(filepath.Join(k.cfg.Dir, CheckpointName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := ParseCheckpoint(data)
	if err != nil {
		return err
	}
	for name := range c.Registered {
		// There are no devices until the plugin has registered again.
		k.resources[name] = &resource{
			name: name, healthy: map[string]bool{}, unhealthy: map[string]bool{}, stopped: k.cfg.Now(),
		}
	}
	for _, e := range c.Entries {
		resp := &v1beta1.ContainerAllocateResponse{}
		if err := proto.Unmarshal(e.AllocResp, resp); err != nil {
			k.cfg.Log("kubelet: can't unmarshal allocResp of pod %s: %v", e.PodUID, err)
			continue
		}
		k.allocations = append(k.allocations, &allocation{
			uid: e.PodUID, container: e.ContainerName, resource: e.ResourceName, numa: e.DeviceIDs, response: resp,
		})
	}
	return nil
}
