package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/spf13/pflag"

	strict "github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/inotify"
)

// begin reads the configuration file. The one that the program before had in force
// stays so where what is there now cannot be served.
func (o *options) begin(f *pflag.FlagSet) (*options, error) {
	data, err := o.readFirst()
	writing := errors.Is(err, errWriting)
	if err == nil || writing {
		err = o.adopt(f, data)
	}
	if err != nil || writing {
		if before := o.asBefore(); before != nil {
			return before, nil //nolint:nilerr // it is refused as soon as it is followed
		}
	}
	return o, err // one that is being written is read as it is: the writer's closing it is news
}

// readFirst reads the configuration file. What ends of itself takes it from a pipe,
// too.
func (o *options) readFirst() ([]byte, error) {
	if o.dryRun || o.once {
		data, err := os.ReadFile(o.configFile)
		if err != nil {
			err = fmt.Errorf("read the configuration: %w", err)
		}
		return data, err
	}
	return readFile(o.configFile)
}

// openFlags keep a FIFO in the place of a file from being waited on.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK | syscall.O_CLOEXEC

// errWriting means that somebody is writing the file.
var errWriting = errors.New("the file is being written")

// readRegular reads a configuration file. What is no file is not waited for. With
// errWriting it returns what is there so far.
func readRegular(open func() (*os.File, error), path string) ([]byte, error) {
	f, err := open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: there is no such file; put it there", path)
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
		return nil, fmt.Errorf("%s: no regular file (%s); put the configuration there", path, info.Mode().Type())
	}
	// Where that is not known, what is there is read.
	writing, _ := inotify.Writing(f.Fd())
	data, err := io.ReadAll(io.LimitReader(f, strict.MaxBytes+1))
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
