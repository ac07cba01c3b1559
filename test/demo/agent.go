package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// program returns the path of one of the project's programs, beside this one.
func program(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w; run make build", err)
	}
	return path, nil
}

// runProgram runs a program of the project to its end.
func runProgram(ctx context.Context, name string, args ...string) (stdout []byte, err error) {
	path, err := program(name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = &errs
	stdout, err = cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return stdout, nil
}

// agent is a program that runs on the node until the demo ends.
type agent struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}

	mu   sync.Mutex
	tail []string // the last lines that it logged
	part []byte
	echo io.Writer
}

// tailLines is the number of lines of an agent's log that are shown when it fails.
const tailLines = 12

// startAgent starts an agent; died is called if it ends by itself.
func startAgent(echo io.Writer, died func(error), name string, args ...string) (*agent, error) {
	path, err := program(name)
	if err != nil {
		return nil, err
	}
	a := &agent{name: name, done: make(chan struct{}), echo: echo}
	a.cmd = exec.Command(path, args...)
	a.cmd.Stdout, a.cmd.Stderr = a, a
	a.cmd.Env = append(os.Environ(), "LOG_FORMAT=text")
	if err := a.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(a.done)
		err := a.cmd.Wait()
		died(fmt.Errorf("%s ended by itself: %v", name, exitText(err)))
	}()
	return a, nil
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// Write keeps the last lines of the log.
func (a *agent) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.part = append(a.part, b...)
	for {
		line, rest, found := bytes.Cut(a.part, []byte("\n"))
		if !found {
			return len(b), nil
		}
		a.part = rest
		a.tail = append(a.tail, string(line))
		if len(a.tail) > tailLines {
			a.tail = a.tail[1:]
		}
		if a.echo != nil {
			fmt.Fprintf(a.echo, "    %s | %s\n", a.name, line)
		}
	}
}

func (a *agent) log() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(a.tail, "\n")
}

// end ends the agent as the kubelet would.
func (a *agent) end() {
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-a.done:
	case <-time.After(5 * time.Second):
		_ = a.cmd.Process.Kill()
		<-a.done
	}
}
