package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
	"github.com/gpuready/gpuready/internal/partition"
)

// servePartitions creates and destroys partitions for gpu-dra-driver until ctx ends. This process does
// that because it has NVML open, and the capability mig/config: a second user of NVML would keep GPUs
// open that are to be reset.
func (p *Plugin) servePartitions(ctx context.Context) error {
	dir := p.stateDir(nodestate.DevicePlugin)
	server := partition.Server{
		Socket: filepath.Join(dir, partition.SocketName),
		Maker: func() partition.Maker {
			p.mu.Lock()
			defer p.mu.Unlock()
			maker, is := p.source.(partition.Maker)
			if !is {
				return nil
			}
			return reportingMaker{maker, p.applyAndPublish}
		},
		Changed: func() {
			// For the toolkit, which names the MIG devices; then for this process's own inventory.
			if err := record.Write(filepath.Join(dir, nodestate.LayoutName), []byte(time.Now().UTC().Format(time.RFC3339Nano)+"\n")); err != nil {
				p.cfg.Log.Warn("gpu-toolkit is not told of the new MIG layout; it finds it by itself, later", "message", err.Error())
			}
			select {
			case p.resync <- struct{}{}:
			default: // one is pending
			}
		},
		Log: p.cfg.Log,
	}
	for {
		err := errors.Join(os.MkdirAll(dir, 0o755), server.Run(ctx))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// The GPUs are watched all the same. No event reports that a folder can be written again.
		p.cfg.Log.Error("no partition can be created for a claim", "message", err.Error())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lastPause):
		}
	}
}

// reportingMaker is a Maker that reports each partition that it has created or destroyed.
type reportingMaker struct {
	partition.Maker
	report func(fact)
}

// CreatePartition creates a partition at a placement.
func (m reportingMaker) CreatePartition(ctx context.Context, at gpu.Placement) (gpu.Partition, error) {
	made, err := m.Maker.CreatePartition(ctx, at)
	if err == nil {
		m.report(instanceCreated(made))
	}
	return made, err
}

// DestroyPartition destroys what is at a placement.
func (m reportingMaker) DestroyPartition(ctx context.Context, at gpu.Placement) error {
	err := m.Maker.DestroyPartition(ctx, at)
	if err == nil {
		m.report(instanceDestroyed(at))
	}
	return err
}
