package partition

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
)

// Client asks the server for partitions. It is a Maker.
type Client struct {
	Socket string
	// OnAnswer is called with the time that the driver took for a request; nil: nobody is
	// interested.
	OnAnswer func(driver time.Duration)
	// Limit bounds a request; 0: what the server takes at most.
	Limit time.Duration
}

var _ Maker = Client{}

// Instances asks which GPU instances exist on a GPU.
func (c Client) Instances(ctx context.Context, id gpu.UUID) ([]gpu.Instance, error) {
	a, err := c.sendRequest(ctx, "instances", gpu.Placement{GPU: id, Size: 1})
	return a.Instances, err
}

// CreatePartition asks for a partition. After an ErrLeftover nobody knows what was done.
func (c Client) CreatePartition(ctx context.Context, at gpu.Placement) (gpu.Partition, error) {
	a, err := c.sendRequest(ctx, "create", at)
	if err != nil {
		return gpu.Partition{}, err
	}
	if a.Partition == nil || a.Partition.Placement != at || a.Partition.UUID == "" {
		return gpu.Partition{}, fmt.Errorf("%w: gpu-device-plugin answered without the partition", gpu.ErrLeftover)
	}
	return *a.Partition, nil
}

// DestroyPartition asks to destroy what is at a placement.
func (c Client) DestroyPartition(ctx context.Context, at gpu.Placement) error {
	_, err := c.sendRequest(ctx, "destroy", at)
	return err
}

func (c Client) sendRequest(ctx context.Context, operation string, at gpu.Placement) (answer, error) {
	body, err := json.Marshal(at)
	if err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Limit, callLimit+5*time.Second))
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://gpu-device-plugin/"+operation, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", c.Socket)
		},
	}
	response, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrPermission) {
			return answer{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return answer{}, fmt.Errorf("%w: %w", gpu.ErrLeftover, err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return answer{}, fmt.Errorf("%w: %w", gpu.ErrLeftover, err)
	}
	if response.StatusCode != http.StatusOK {
		return answer{}, &remoteError{fmt.Sprintf("gpu-device-plugin: %s: %.200s", response.Status, data), errFailed}
	}
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return answer{}, fmt.Errorf("%w: gpu-device-plugin: %w", gpu.ErrLeftover, err)
	}
	if c.OnAnswer != nil {
		c.OnAnswer(a.DriverTime)
	}
	return a, a.error()
}
