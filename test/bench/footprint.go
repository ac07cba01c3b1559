package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const megabyte = 1e6

// idle is the time that a plugin is idle before its memory is measured.
const idle = time.Second

// memory measures the plugin's peak memory, and how much of its final memory is private rather
// than mapped files.
func (b *bench) memory(ctx context.Context) error {
	for _, row := range []struct {
		what           string
		profile        string
		gpus, replicas int
		peak, own      float64
	}{
		{"8 GPUs", "h100-sxm", 8, 1, 18, 4},
		{"16 GPUs × 50 replicas", "dgx-2", 16, 50, 20, 0},
	} {
		name := "device plugin: peak memory, idle, " + row.what + ", MB"
		peak, own, err := b.resident(ctx, row.profile, row.gpus, row.replicas)
		if errors.Is(err, errRefused) {
			leaveOut(name, err)
			continue
		}
		if err != nil {
			return err
		}
		count(name, peak, 1, goal{median: row.peak})
		count("device plugin: anonymous memory, idle, "+row.what+", MB", own, 1, goal{median: row.own})
	}
	return nil
}

func (b *bench) resident(ctx context.Context, profile string, gpus, replicas int) (peak, own []float64, err error) {
	n, err := b.newNode(ctx, profile, gpus)
	if err != nil {
		return nil, nil, err
	}
	defer n.close()
	n.program = filepath.Join(n.dir, "gpu-device-plugin")
	if err := copyFile(n.program, b.program(pluginProgram)); err != nil {
		return nil, nil, err
	}
	config := ""
	if replicas > 1 {
		config = sharedConfig(replicas)
	}
	for range 5 {
		p, err := n.startPlugin(ctx, gpus*replicas, config)
		if err != nil {
			return nil, nil, err
		}
		if err := sleep(ctx, idle); err != nil {
			return nil, nil, err
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
		if err != nil {
			return nil, nil, p.failed(err)
		}
		highest, err := field(string(status), "VmHWM")
		if err != nil {
			return nil, nil, err
		}
		anonymous, err := field(string(status), "RssAnon")
		if err != nil {
			return nil, nil, err
		}
		peak, own = append(peak, highest/megabyte), append(own, anonymous/megabyte)
		if err := p.stop(ctx); err != nil {
			return nil, nil, err
		}
	}
	return peak, own, nil
}

// copyFile writes a program from its beginning to its end, as an image's layer is unpacked. The
// linker writes at random offsets. The kernel then caches the file in larger pieces and maps
// 1.5 MB more of it.
func copyFile(to, from string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(struct{ io.Writer }{target}, source) // written, not shared by the file system
	return errors.Join(err, target.Close())
}

// field reads a size from /proc/PID/status, which is in units of 1024 bytes, as bytes.
func field(status, name string) (float64, error) {
	for line := range strings.Lines(status) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			var kib float64
			_, err := fmt.Sscanf(value, "%f kB", &kib)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/PID/status has no %s", name)
}

// size measures the built program's size on disk.
func (b *bench) size(context.Context) error {
	info, err := os.Stat(b.program(pluginProgram))
	if err != nil {
		return err
	}
	count("device plugin: program, MB", []float64{float64(info.Size()) / megabyte}, 1, goal{median: 15})
	return nil
}
