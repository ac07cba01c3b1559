package serve

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/gpuready/gpuready/driver/daemons"
	"github.com/gpuready/gpuready/driver/kernel"
	"github.com/gpuready/gpuready/internal/nodestate"
	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// loadedName is the file beside the state that records the modules that were loaded, or are
// about to be.
const loadedName = "loaded.json"

// stateName is the file of NVIDIA's driver containers with the same purpose.
const stateName = "nvidia-driver.state"

const maxRecord = 64 << 10

// loadedRecord records the modules that were loaded, or are about to be.
type loadedRecord struct {
	BootID string `json:"bootID"`
	Digest string `json:"digest"`
}

func (d *Driver) dir() string { return filepath.Join(d.StateDir, string(nodestate.Driver)) }

// saveLoaded records the modules that are about to be loaded.
func (d *Driver) saveLoaded(s Snapshot) error {
	data, err := json.Marshal(loadedRecord{d.boot, s.Digest})
	if err != nil {
		return err
	}
	return record.Write(filepath.Join(d.dir(), loadedName), append(data, '\n'))
}

// removeLoaded removes the record of saveLoaded: no module is adopted after that.
func (d *Driver) removeLoaded() error {
	return errors.Join(record.Remove(filepath.Join(d.dir(), loadedName)), record.Remove(d.statePath()))
}

func (d *Driver) statePath() string { return filepath.Join(filepath.Dir(d.Root), stateName) }

// canAdopt reports whether the loaded modules can be adopted: they were loaded since the node's
// boot for the same configuration, and are those of the image. Some may be missing.
func (d *Driver) canAdopt(s Snapshot) bool {
	data, err := record.Read(filepath.Join(d.dir(), loadedName), maxRecord)
	if err != nil {
		return false
	}
	var m loadedRecord
	if json.Unmarshal(data, &m) != nil || m.BootID != d.boot || m.Digest != s.Digest {
		return false
	}
	for _, name := range kernel.DriverModules {
		l, isLoaded := s.Loaded[name]
		if isLoaded && !d.System.Describe(l).IsSameBuild(s.Files[name].Info) {
			return false
		}
	}
	return true
}

// ReadyFile is the file that tells the ecosystem that a driver container has loaded its
// driver. Its lines are those of the startup probe in NVIDIA's gpu-operator.
const ReadyFile = ".driver-ctr-ready"

// writeReadyFiles writes the files for the ecosystem: readiness and configuration of the driver.
func (d *Driver) writeReadyFiles() error {
	rdma := "false"
	if d.Peermem {
		rdma = "true"
	}
	text := "GDRCOPY_ENABLED: " + env("GDRCOPY_ENABLED") + "\nGDS_ENABLED: " + env("GDS_ENABLED") + "\nGPU_DIRECT_RDMA_ENABLED: " + rdma + "\n"
	return errors.Join(
		record.Write(d.statePath(), []byte("DRIVER_CONFIG_DIGEST="+d.Digest+"\n")),
		record.Write(filepath.Join(d.OutputDir, ReadyFile), []byte(text)),
	)
}

func env(name string) string {
	if os.Getenv(name) == "true" {
		return "true"
	}
	return "false"
}

// removeReadyFiles removes the files that announce a ready driver.
func (d *Driver) removeReadyFiles() error {
	return errors.Join(record.Remove(filepath.Join(d.OutputDir, ReadyFile)), record.Remove(filepath.Join(d.OutputDir, daemons.StatusFile)))
}
