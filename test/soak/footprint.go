package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// footprint is what a process holds. A goroutine or a file that nobody needs any
// more is one that is leaked.
type footprint struct {
	files      map[string]int // open files by what they are; sockets and the like by their kind
	goroutines int            // -1: it does not tell
	memory     string         // resident
}

func (f footprint) count() int {
	n := 0
	for _, c := range f.files {
		n += c
	}
	return n
}

func (f footprint) String() string {
	return fmt.Sprintf("%d files, %d goroutines, %s", f.count(), f.goroutines, f.memory)
}

// more says what there is more of than before; "" for nothing.
func (f footprint) more(before footprint) string {
	var more []string
	if f.count() > before.count() {
		for _, kind := range slices.Sorted(maps.Keys(f.files)) {
			if n := f.files[kind] - before.files[kind]; n > 0 {
				more = append(more, fmt.Sprintf("%d × %s", n, kind))
			}
		}
	}
	if f.goroutines > before.goroutines {
		more = append(more, fmt.Sprintf("%d goroutines", f.goroutines-before.goroutines))
	}
	return strings.Join(more, ", ")
}

// footprint takes that of the plugin.
func (n *node) footprint(ctx context.Context) (footprint, error) {
	// First, since being asked opens a connection, which is closed after the answer.
	f := footprint{files: map[string]int{}, goroutines: n.goroutines(ctx)}
	proc := fmt.Sprintf("/proc/%d/", n.cmd.Process.Pid)
	entries, err := os.ReadDir(proc + "fd")
	if err != nil {
		return f, err
	}
	for _, e := range entries {
		if target, err := os.Readlink(proc + "fd/" + e.Name()); err == nil {
			kind, _, _ := strings.Cut(target, ":[")
			f.files[kind]++
		}
	}
	status, err := os.ReadFile(proc + "status")
	for line := range strings.Lines(string(status)) {
		if rss, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			f.memory = strings.Join(strings.Fields(rss), " ")
		}
	}
	return f, err
}

func (n *node) goroutines(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.metrics+"/metrics", nil)
	if err != nil {
		return -1
	}
	request.Close = true
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return -1
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			if count, err := strconv.Atoi(value); err == nil {
				return count
			}
		}
	}
	return -1
}

// least is the smallest footprint of a few: what is being done just now, a scrape or
// a probe, comes and goes.
func (n *node) least(ctx context.Context, enough func(footprint) bool, patience time.Duration) (footprint, error) {
	var least footprint
	for began := time.Now(); ; {
		f, err := n.footprint(ctx)
		if err != nil {
			return f, err
		}
		if least.files == nil || f.count() < least.count() {
			least.files, least.memory = f.files, f.memory
		}
		if least.goroutines <= 0 || f.goroutines < least.goroutines {
			least.goroutines = f.goroutines
		}
		if enough(least) || time.Since(began) > patience {
			return least, nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return least, ctx.Err()
		}
	}
}
