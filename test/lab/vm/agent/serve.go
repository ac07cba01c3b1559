package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/test/lab/vm"
)

// server answers requests, each in a goroutine of its own.
type server struct {
	processes *processes

	writing sync.Mutex
	line    *os.File

	mu    sync.Mutex
	files map[int]*os.File
	last  int
}

// serve answers the requests that come over a serial port.
func serve(line *os.File) error {
	s := &server{processes: newProcesses(), line: line, files: map[int]*os.File{}}
	go s.processes.reap()
	s.send(vm.Response{})
	in := bufio.NewReaderSize(line, 64<<10)
	for {
		text, err := in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		var r vm.Request
		if err := json.Unmarshal(text, &r); err != nil {
			return fmt.Errorf("read a request: %w: %q", err, text)
		}
		go func() {
			response, err := s.handle(r)
			response.ID = r.ID
			if err != nil {
				response.Error = err.Error()
				if errno, ok := errors.AsType[unix.Errno](err); ok {
					response.Errno = errno
					response.Error = strings.TrimSuffix(response.Error, ": "+errno.Error()) // Response.Err adds it
				}
			}
			s.send(response)
		}()
	}
}

func (s *server) send(r vm.Response) {
	text, err := json.Marshal(r)
	if err != nil {
		text = fmt.Appendf(nil, `{"ID":%d,"Error":%q}`, r.ID, err)
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	if _, err := s.line.Write(append(text, '\n')); err != nil {
		fmt.Fprintln(os.Stderr, "agent: send a response:", err)
	}
}

func (s *server) handle(r vm.Request) (response vm.Response, err error) {
	switch r.Op {
	case vm.OpStart:
		response.Handle, response.Pid, err = s.processes.start(*r.Command)
	case vm.OpWait:
		response, err = s.processes.wait(r.Handle, r.Timeout)
	case vm.OpSignal:
		err = s.processes.signal(r.Handle, unix.Signal(r.Signal), r.Group)
	case vm.OpOpenFile:
		response.Handle, err = s.open(r.Path, r.Flags)
	case vm.OpCloseFile:
		err = s.close(r.Handle)
	case vm.OpReadFile:
		response.Data, err = os.ReadFile(r.Path)
	case vm.OpWriteFile:
		err = os.WriteFile(r.Path, r.Data, os.FileMode(r.Mode))
	case vm.OpLoadModule:
		err = load(r.Path, r.Params)
	case vm.OpUnloadModule:
		if err = unix.DeleteModule(r.Path, unix.O_NONBLOCK); err != nil {
			err = &os.PathError{Op: "unload", Path: r.Path, Err: err}
		}
	case vm.OpReboot:
		unix.Sync()
		err = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	case vm.OpPowerOff:
		unix.Sync()
		err = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	default:
		err = fmt.Errorf("unknown request %q", r.Op)
	}
	return response, err
}

func (s *server) open(path string, flags int) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.files[s.last] = os.NewFile(uintptr(fd), path)
	return s.last, nil
}

func (s *server) close(handle int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[handle]
	if !ok {
		return fmt.Errorf("no open file has the handle %d", handle)
	}
	delete(s.files, handle)
	return f.Close()
}
