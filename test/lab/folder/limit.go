package folder

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits are minimum values of kernel parameters, by their files.
type Limits map[string]int

// ClusterLimits holds the limits that clusters need. A node's kubelet, containerd and agents have about
// 15 inotify instances open; Linux allows a user 128 by default.
var ClusterLimits = Limits{"/proc/sys/fs/inotify/max_user_instances": 1024}

// LimitsFile stores the original limits.
const LimitsFile = "/run/gpuready-cluster-limits"

// RaisedLimits are limits that stay raised until Lower. If this process is killed, the Lower of another
// one restores them.
type RaisedLimits struct {
	limits Limits
	file   *os.File // locked, shared with other clusters
}

// RaiseLimits raises the limits that are lower, and stores the original values in the file at path.
func RaiseLimits(path string, limits Limits) (*RaisedLimits, error) {
	alone, err := lockPath(path + ".lock")
	if err != nil {
		return nil, err
	}
	defer alone.Close()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	r := &RaisedLimits{limits: limits, file: file}
	if err := r.raise(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

func (r *RaisedLimits) raise() error {
	if err := unix.Flock(int(r.file.Fd()), unix.LOCK_SH); err != nil {
		return fmt.Errorf("lock %s: %w", r.file.Name(), err)
	}
	were, err := r.read()
	if err != nil {
		return err
	}
	before := len(were)
	low := Limits{}
	for path, least := range r.limits {
		now, err := readLimit(path)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue // a kernel without it
		case err != nil:
			return err
		case now >= least:
			continue
		}
		low[path] = least
		if _, known := were[path]; !known {
			were[path] = now
		}
	}
	if len(were) > before { // before anything is changed
		if err := r.write(were); err != nil {
			return err
		}
	}
	for path, least := range low {
		if err := writeLimit(path, least); err != nil {
			return err
		}
	}
	return nil
}

// Lower restores the limits, unless another cluster needs them or someone has changed them
// since.
func (r *RaisedLimits) Lower() error {
	path := r.file.Name()
	alone, err := lockPath(path + ".lock")
	if err != nil {
		return errors.Join(err, r.file.Close())
	}
	defer alone.Close()
	defer r.file.Close()
	err = unix.Flock(int(r.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil // the last one does it
	case err != nil:
		return fmt.Errorf("lock %s: %w", path, err)
	}
	were, err := r.read()
	if err != nil {
		return err
	}
	var errs []error
	for path, value := range were {
		now, err := readLimit(path)
		if err == nil && now == r.limits[path] {
			err = writeLimit(path, value)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, os.Remove(path), os.Remove(path+".lock"))...)
}

// lockPath waits for a file's lock, which is never held for long. The holder may remove the file,
// so lock checks that the path still leads to it.
func lockPath(path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		locked, err := file.Stat()
		if now, errNow := os.Stat(path); err == nil && errNow == nil && os.SameFile(locked, now) {
			return file, nil
		}
		_ = file.Close()
	}
}

func (r *RaisedLimits) read() (Limits, error) {
	data, err := io.ReadAll(io.NewSectionReader(r.file, 0, 4096))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", r.file.Name(), err)
	}
	were := Limits{}
	if len(data) == 0 {
		return were, nil
	}
	if err := json.Unmarshal(data, &were); err != nil {
		return nil, fmt.Errorf("%s: %w; remove it, and set the limits yourself (sysctl fs.inotify)", r.file.Name(), err)
	}
	return were, nil
}

func (r *RaisedLimits) write(were Limits) error {
	data, err := json.Marshal(were)
	if err != nil {
		return err
	}
	if err := r.file.Truncate(0); err != nil {
		return err
	}
	_, err = r.file.WriteAt(data, 0)
	return err
}

func readLimit(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

func writeLimit(path string, value int) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return fmt.Errorf("set the limit to %d: %w", value, err)
	}
	_, err = file.WriteString(strconv.Itoa(value) + "\n")
	return errors.Join(err, file.Close())
}
