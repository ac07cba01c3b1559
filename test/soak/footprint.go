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

// footprint holds the resources that a process uses at one moment. Open files or
// goroutines that remain after the work has ended are leaks.
type footprint struct {
	files      map[string]int // number of open files, by path or by kind ("socket", "pipe")
	goroutines int            // -1: unknown
	memory     string         // resident
}

// count returns the number of open files.
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

// growthSince describes what is more than before, or returns "". Memory does not count.
func (f footprint) growthSince(before footprint) string {
	var growth []string
	if f.count() > before.count() {
		for _, kind := range slices.Sorted(maps.Keys(f.files)) {
			if n := f.files[kind] - before.files[kind]; n > 0 {
				growth = append(growth, fmt.Sprintf("%d × %s", n, kind))
			}
		}
	}
	if f.goroutines > before.goroutines {
		growth = append(growth, fmt.Sprintf("%d goroutines", f.goroutines-before.goroutines))
	}
	return strings.Join(growth, ", ")
}

// footprint measures the plugin's footprint.
func (n *node) footprint(ctx context.Context) (footprint, error) {
	// Goroutines come before files: the request for their number opens a connection, which is an
	// open file of the plugin until the response has ended.
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

// goroutines reads the number of the plugin's goroutines from its metrics, or returns -1.
func (n *node) goroutines(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.metrics+"/metrics", nil)
	if err != nil {
		return -1
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return -1
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			if count, err := strconv.Atoi(value); err == nil {
				return count
			}
		}
	}
	return -1
}

// leastFootprint measures the footprint again and again, and returns the smallest values. So
// temporary work, such as a scrape or a probe, does not count. It returns as soon as enough accepts
// the values, and after patience in any case.
func (n *node) leastFootprint(ctx context.Context, enough func(footprint) bool, patience time.Duration) (footprint, error) {
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
