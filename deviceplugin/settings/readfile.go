package settings

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/spf13/pflag"

	baseconfig "github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/inotify"
)

// readInitialFile reads the configuration file. If it cannot be served, the configuration
// of the previous program stays in force.
func (o *Options) readInitialFile(f *pflag.FlagSet) (*Options, error) {
	data, err := o.readFileOrPipe()
	writing := errors.Is(err, errWriting)
	if err == nil || writing {
		err = o.applyFile(f, data)
	}
	if err != nil || writing {
		if previous := o.withHandedOver(); previous != nil {
			return previous, nil //nolint:nilerr // the watcher reports the error
		}
	}
	return o, err // a file being written is read as it is; closing it triggers a reload
}

// readFileOrPipe reads the configuration file, for the commands that end by themselves also
// from a pipe.
func (o *Options) readFileOrPipe() ([]byte, error) {
	if o.Mode == PrintDevices || o.Once {
		data, err := os.ReadFile(o.ConfigFile)
		if err != nil {
			err = fmt.Errorf("read the configuration: %w", err)
		}
		return data, err
	}
	return readFile(o.ConfigFile)
}

// openFlags prevents waiting on a FIFO in place of a file.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_CLOEXEC

// errWriting means that the file is open for writing.
var errWriting = errors.New("the file is being written")

// readRegular reads a configuration file. It does not wait on anything but a regular
// file. With errWriting it returns the content so far.
func readRegular(open func() (*os.File, error), path string) ([]byte, error) {
	f, err := open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: there is no such file; create it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file (%s); replace it by the configuration", path, info.Mode().Type())
	}
	// If that is unknown, read the present content.
	writing, _ := inotify.OpenForWriting(f.Fd())
	data, err := io.ReadAll(io.LimitReader(f, baseconfig.MaxBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the configuration %s: %w", path, err)
	case writing:
		return data, fmt.Errorf("%s: %w; it is read when its writer closes it", path, errWriting)
	}
	return data, nil
}

func readFile(path string) ([]byte, error) {
	return readRegular(func() (*os.File, error) { return os.OpenFile(path, openFlags, 0) }, path)
}
