// Package nvml has the few functions of NVML with which the kit looks at this machine's GPUs, without cgo.
package nvml

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ebitengine/purego"
)

// GPU describes one of the machine's GPUs.
type GPU struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
	Size uint64 `json:"size"` // of its memory, in bytes
	Free uint64 `json:"free"`
	Mode uint32 `json:"mode"` // its compute mode
}

// Compute modes (nvml.h, nvmlComputeMode_t).
const (
	ModeDefault   = 0
	ModeExclusive = 3
)

// Machine describes the machine's GPUs, and what NVML took to tell.
type Machine struct {
	Driver   string          `json:"driver"`
	GPUs     []GPU           `json:"gpus"`
	Init     []time.Duration `json:"init"` // of each nvmlInit
	Shutdown []time.Duration `json:"shutdown"`
	Read     []time.Duration `json:"read"` // of reading all of the above once
}

// handle is an nvmlDevice_t.
type handle uintptr

type library struct {
	init, shutdown func() int32
	count          func(*uint32) int32
	device         func(uint32, *handle) int32
	driver         func(*byte, uint32) int32
	name, uuid     func(handle, *byte, uint32) int32
	memory         func(handle, *[3]uint64) int32
	mode           func(handle, *uint32) int32
	setMode        func(handle, uint32) int32
}

// Libraries returns the paths at which a driver's NVML may lie on this machine.
func Libraries() []string {
	found := []string{"libnvidia-ml.so.1"}
	for _, pattern := range []string{"/run/nvidia/driver/usr/lib/*/libnvidia-ml.so.1", "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1"} {
		more, _ := filepath.Glob(pattern)
		found = append(found, more...)
	}
	return found
}

func open() (*library, error) {
	var first error
	for _, path := range Libraries() {
		lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		l := &library{}
		for name, function := range map[string]any{
			"nvmlInit_v2": &l.init, "nvmlShutdown": &l.shutdown, "nvmlDeviceGetCount_v2": &l.count,
			"nvmlDeviceGetHandleByIndex_v2": &l.device, "nvmlSystemGetDriverVersion": &l.driver,
			"nvmlDeviceGetName": &l.name, "nvmlDeviceGetUUID": &l.uuid, "nvmlDeviceGetMemoryInfo": &l.memory,
			"nvmlDeviceGetComputeMode": &l.mode, "nvmlDeviceSetComputeMode": &l.setMode,
		} {
			purego.RegisterLibFunc(function, lib, name)
		}
		return l, nil
	}
	return nil, fmt.Errorf("no driver on this machine: %w", first)
}

// Error is the result of a call that failed.
type Error struct {
	Call string
	Code int32 // nvmlReturn_t
}

func (e *Error) Error() string { return fmt.Sprintf("%s returned %d", e.Call, e.Code) }

func check(call string, code int32) error {
	if code == 0 {
		return nil
	}
	return &Error{call, code}
}

// Read initialises NVML, reads the machine and shuts NVML down, as often as it is told.
func Read(times int) (Machine, error) {
	var m Machine
	l, err := open()
	if err != nil {
		return m, err
	}
	for range times {
		began := time.Now()
		if err := check("nvmlInit", l.init()); err != nil {
			return m, err
		}
		m.Init = append(m.Init, time.Since(began))
		began = time.Now()
		m.Driver, m.GPUs, err = l.read()
		m.Read = append(m.Read, time.Since(began))
		began = time.Now()
		err = cmp.Or(err, check("nvmlShutdown", l.shutdown()))
		m.Shutdown = append(m.Shutdown, time.Since(began))
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

func (l *library) read() (driver string, gpus []GPU, err error) {
	var text [96]byte
	if err := check("nvmlSystemGetDriverVersion", l.driver(&text[0], uint32(len(text)))); err != nil {
		return "", nil, err
	}
	driver = decode(text[:])
	var count uint32
	if err := check("nvmlDeviceGetCount", l.count(&count)); err != nil {
		return "", nil, err
	}
	for i := range count {
		var g GPU
		var h handle
		var memory [3]uint64 // nvmlMemory_t: total, free, used
		var name, uuid [96]byte
		err := cmp.Or(check("nvmlDeviceGetHandleByIndex", l.device(i, &h)),
			check("nvmlDeviceGetName", l.name(h, &name[0], uint32(len(name)))),
			check("nvmlDeviceGetUUID", l.uuid(h, &uuid[0], uint32(len(uuid)))),
			check("nvmlDeviceGetMemoryInfo", l.memory(h, &memory)),
			check("nvmlDeviceGetComputeMode", l.mode(h, &g.Mode)))
		if err != nil {
			return "", nil, err
		}
		g.Name, g.UUID, g.Size, g.Free = decode(name[:]), decode(uuid[:]), memory[0], memory[1]
		gpus = append(gpus, g)
	}
	return driver, gpus, nil
}

func decode(text []byte) string {
	if end := slices.Index(text, 0); end >= 0 {
		text = text[:end]
	}
	return string(text)
}

// SetMode sets the compute mode of all GPUs.
func SetMode(mode uint32) error {
	if os.Geteuid() != 0 {
		return os.ErrPermission
	}
	l, err := open()
	if err != nil {
		return err
	}
	if err := check("nvmlInit", l.init()); err != nil {
		return err
	}
	defer l.shutdown()
	var count uint32
	if err := check("nvmlDeviceGetCount", l.count(&count)); err != nil {
		return err
	}
	for i := range count {
		var h handle
		err := cmp.Or(check("nvmlDeviceGetHandleByIndex", l.device(i, &h)), check("nvmlDeviceSetComputeMode", l.setMode(h, mode)))
		if err != nil {
			return err
		}
	}
	return nil
}
