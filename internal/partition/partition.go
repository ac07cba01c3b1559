// Package partition is the interface between the program that holds NVML and may change the MIG
// layout, gpu-device-plugin, and the one that decides on it, gpu-dra-driver: two requests over a Unix
// socket beside the device plugin's state. It is served only with --mig=dynamic.
package partition

import (
	"context"
	"errors"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// SocketName is the name of the socket in the folder of the device plugin's state.
const SocketName = "partition.sock"

// Maker creates and destroys partitions.
type Maker interface {
	// Instances returns the GPU instances that exist on a GPU now.
	Instances(ctx context.Context, id gpu.UUID) ([]gpu.Instance, error)
	// CreatePartition creates a partition at a placement, or leaves nothing of it. Its error
	// wraps one of the errors of package gpu: ErrLeftover, ErrNoRoom, ErrNoMIGMode,
	// ErrNoPermission, ErrUnreachable, or none of them.
	CreatePartition(ctx context.Context, at gpu.Placement) (gpu.Partition, error)
	// DestroyPartition destroys what is at a placement. That nothing is there is no error.
	// ErrInUse: a process uses it. ErrUnreachable: it may be there when the GPU returns.
	DestroyPartition(ctx context.Context, at gpu.Placement) error
}

// ErrUnavailable means that nobody serves the socket, or that there is no driver: nothing was done.
var ErrUnavailable = errors.New("gpu-device-plugin does not change the MIG layout now")

// answer is the answer to a gpu.Placement.
type answer struct {
	Partition  *gpu.Partition `json:"partition,omitempty"` // created
	Instances  []gpu.Instance `json:"instances,omitempty"`
	DriverTime time.Duration  `json:"driverTime"`     // ns that calls of the driver took
	Code       string         `json:"code,omitempty"` // "": it was done
	Message    string         `json:"message,omitempty"`
}

// codes names the errors on the wire, in the order in which they are looked for.
var codes = []struct {
	code string
	err  error
}{
	{"Leftover", gpu.ErrLeftover}, {"InUse", gpu.ErrInUse}, {"NoRoom", gpu.ErrNoRoom}, {"NoMIGMode", gpu.ErrNoMIGMode},
	{"NoPermission", gpu.ErrNoPermission}, {"Unreachable", gpu.ErrUnreachable}, {"Unavailable", ErrUnavailable}, {"Failed", errFailed},
}

// errFailed is another failure, after which nothing is left.
var errFailed = errors.New("the driver refused")

// codeOf returns the code of an error.
func codeOf(err error) string {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return "Failed"
}

// remoteError is an error that the other side has returned.
type remoteError struct {
	message string
	err     error // one of codes
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.err }

// errorOf returns the error of an answer; nil: there is none.
func (a answer) error() error {
	if a.Code == "" {
		return nil
	}
	for _, c := range codes {
		if c.code == a.Code {
			return &remoteError{a.Message, c.err}
		}
	}
	return &remoteError{a.Message, gpu.ErrLeftover} // of a later release
}
