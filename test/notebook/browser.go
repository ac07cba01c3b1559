package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpuready/gpuready/test/lab/binaries"
)

// Browser is a running Chromium.
type Browser struct {
	cmd      *exec.Cmd
	profile  string
	commands *os.File      // Chromium reads from it
	ended    chan struct{} // closed when it no longer responds

	mu      sync.Mutex
	last    int
	waiting map[int]chan<- message
}

// message is a command, a response or an event of the DevTools protocol.
type message struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// StartBrowser fetches Chromium into the cache, if it is not there, and starts it. Its output goes to log.
func StartBrowser(ctx context.Context, cache string, log io.Writer) (*Browser, error) {
	root, err := binaries.EnsureDebian(ctx, cache, binaries.Chromium, os.Stderr)
	if err != nil {
		return nil, err
	}
	profile, err := os.MkdirTemp("", "browser-")
	if err != nil {
		return nil, err
	}
	b := &Browser{profile: profile, ended: make(chan struct{}), waiting: map[int]chan<- message{}}
	if err := b.start(root, log); err != nil {
		return nil, errors.Join(fmt.Errorf("start Chromium: %w", err), os.RemoveAll(profile))
	}
	return b, nil
}

func (b *Browser) start(root string, log io.Writer) error {
	theirs, commands, err := os.Pipe()
	if err != nil {
		return err
	}
	defer theirs.Close()
	answers, theirAnswers, err := os.Pipe()
	if err != nil {
		return errors.Join(err, commands.Close())
	}
	defer theirAnswers.Close()
	lib := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	// Chromium's sandbox does not work for root. The pages are our own.
	b.cmd = exec.Command(filepath.Join(root, "usr/lib/chromium/chromium-headless-shell"),
		"--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", "--user-data-dir="+b.profile, "about:blank")
	b.cmd.Env = []string{
		"HOME=" + b.profile, "TMPDIR=" + b.profile, "LC_ALL=C.UTF-8", "FONTCONFIG_SYSROOT=" + root,
		"LD_LIBRARY_PATH=" + strings.Join([]string{lib, filepath.Join(root, "lib/x86_64-linux-gnu"), lib + "/pulseaudio"}, ":"),
	}
	b.cmd.ExtraFiles = []*os.File{theirs, theirAnswers} // 3 and 4, as it expects
	b.cmd.Stdout, b.cmd.Stderr = log, log
	if err := b.cmd.Start(); err != nil {
		return errors.Join(err, commands.Close(), answers.Close())
	}
	b.commands = commands
	go b.receive(answers)
	return nil
}

// receive passes each response to the waiting command, until Chromium ends.
func (b *Browser) receive(answers *os.File) {
	defer close(b.ended)
	defer answers.Close()
	for r := bufio.NewReader(answers); ; {
		data, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			return
		}
		b.mu.Lock()
		if waiter := b.waiting[m.ID]; waiter != nil {
			waiter <- m
			delete(b.waiting, m.ID)
		}
		b.mu.Unlock()
	}
}

// call sends a command and decodes its result into result, if that is not nil.
func (b *Browser) call(ctx context.Context, session, method string, params, result any) error {
	response := make(chan message, 1)
	b.mu.Lock()
	b.last++
	data, err := json.Marshal(message{ID: b.last, Session: session, Method: method, Params: params})
	if err == nil {
		b.waiting[b.last] = response
		_, err = b.commands.Write(append(data, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case m := <-response:
		if m.Error != nil {
			return fmt.Errorf("%s: %s", method, m.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(m.Result, result)
	case <-b.ended:
		return fmt.Errorf("%s: Chromium has ended", method)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", method, context.Cause(ctx))
	}
}

// Close ends Chromium and removes its profile.
func (b *Browser) Close() error {
	_ = b.commands.Close() // Chromium ends with the pipe
	select {
	case <-b.ended:
	case <-time.After(10 * time.Second):
		_ = b.cmd.Process.Kill()
		<-b.ended
	}
	_ = b.cmd.Wait()
	return os.RemoveAll(b.profile)
}
