package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// nvidiaMajor is the major number of NVIDIA's character devices
// (Documentation/admin-guide/devices.txt).
const nvidiaMajor = 195

// deviceTimeout bounds the initialisation of a GPU. Tens of seconds were seen on machines
// with much memory.
const deviceTimeout = 5 * time.Minute

// opening is the outcome of opening a device.
type opening struct {
	file *os.File
	err  error
}

// Devices holds open devices of GPUs that the driver has initialised. A GPU stays initialised
// while its device is open: without nvidia-persistenced the last close deinitialises it.
type Devices struct {
	files  []*os.File
	failed []error
}

// Failures returns why GPUs could not be initialised, one error with a Reason for each.
func (d *Devices) Failures() []error {
	if d == nil {
		return nil
	}
	return d.failed
}

// Close closes the devices.
func (d *Devices) Close() error {
	if d == nil {
		return nil
	}
	var err error
	for _, f := range d.files {
		err = errors.Join(err, f.Close())
	}
	d.files = nil
	return err
}

// OpenDevices makes the driver initialise each GPU that is bound to it, concurrently, by
// opening its device. It creates the device nodes in dir under names of its own, and removes
// them again; dir's file system has to permit device nodes. If no GPU works, it returns the
// error of the first. A GPU that takes longer than deviceTimeout counts as failed.
func (s System) OpenDevices(ctx context.Context, dir string) (*Devices, error) {
	minors, err := s.listGPUs()
	if err != nil || len(minors) == 0 {
		return nil, err
	}
	log := s.openLog()
	defer log.close()
	ctx, cancel := context.WithTimeout(ctx, deviceTimeout)
	defer cancel()
	opened := make([]chan opening, len(minors))
	for i, m := range minors {
		opened[i] = make(chan opening)
		go func() {
			f, err := openDevice(dir, m.minor)
			select {
			case opened[i] <- opening{f, err}:
			case <-ctx.Done():
				if err == nil {
					_ = f.Close() // a GPU that opens too late is not kept open
				}
			}
		}()
	}
	d := &Devices{}
	errs := make([]error, len(minors))
	for i := range minors {
		select {
		case o := <-opened[i]:
			if errs[i] = o.err; o.err == nil {
				d.files = append(d.files, o.file)
			}
		case <-ctx.Done():
			// The goroutine waits in the kernel and cannot be cancelled.
			errs[i] = fmt.Errorf("it is not initialised after %v", deviceTimeout)
		}
	}
	lines := log.linesAbout("nvidia")
	for i, err := range errs {
		if err == nil {
			continue
		}
		quote := ""
		if len(lines) > 0 {
			quote = "; the kernel says: " + strings.Join(lines, " / ")
		}
		d.failed = append(d.failed, explainInit(minors[i].address, err, lines, quote))
	}
	if len(d.files) == 0 {
		return nil, d.failed[0]
	}
	return d, nil
}

// onlyDataCenter is the kernel's line with which the open modules of old drivers refuse a GPU.
const onlyDataCenter = "Open nvidia.ko is only ready for use on Data Center GPUs"

// explainInit returns the error for a GPU that the driver cannot initialise.
func explainInit(address string, err error, lines []string, quote string) error {
	if slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, onlyDataCenter) }) {
		return newError(ReasonNoDevice, "nvidia", err, "GPU %s: the open modules of a driver before %d support GPUs for data centers alone: "+
			"set kernelModuleType: proprietary, use driver %d or later, or set NVreg_OpenRmEnableUnsupportedGpus=1 in nvidia.conf%s", address, openForAll, openForAll, quote)
	}
	return newError(ReasonDeviceInitFailed, "nvidia", err, "GPU %s: the driver cannot initialise it: %v%s", address, err, quote)
}

// device is a GPU that is bound to the driver.
type device struct {
	address string // on the PCI bus, in the driver's format
	minor   uint32
}

// listGPUs returns the driver's GPUs: /proc/driver/nvidia/gpus/<address>/information has a line
// "Device Minor: <number>".
func (s System) listGPUs() ([]device, error) {
	dir := filepath.Join(s.Proc, "driver/nvidia/gpus")
	addresses, err := readNames(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(addresses)
	var all []device
	for _, address := range addresses {
		f, err := os.Open(filepath.Join(dir, address, "information"))
		if err != nil {
			return nil, err
		}
		data, err := readAtMost(f, 64<<10)
		_ = f.Close()
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(data)) {
			rest, ok := strings.CutPrefix(line, "Device Minor:")
			if minor, err := strconv.ParseUint(strings.TrimSpace(rest), 10, 20); ok && err == nil {
				all = append(all, device{address, uint32(minor)})
			}
		}
	}
	return all, nil
}

func openDevice(dir string, minor uint32) (*os.File, error) {
	path := filepath.Join(dir, fmt.Sprintf(".gpu-driver-%d", minor))
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(nvidiaMajor, minor))); err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	// Without O_NONBLOCK: with it, newer drivers initialise the GPU later and do not report the
	// result.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if removeErr := os.Remove(path); err == nil && removeErr != nil {
		err = errors.Join(removeErr, unix.Close(fd))
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}
