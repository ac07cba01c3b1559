package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// countFolder is the folder on the node with count.so and its file. On /run nothing may be executed.
const countFolder = "/var/lib/nvml-count"

// idle is the time in which the calls of an idle device plugin are counted.
const idle = 20 * time.Second

// call holds how often a function of NVML was called, and the time in all calls together.
type call struct {
	name  string
	count uint64
	took  time.Duration
}

// countNVML has a device plugin count its calls of NVML (count/count.c).
func (k *kit) countNVML(ctx context.Context) (seen string, err error) {
	folder := k.node().PathOnNode(countFolder)
	if err := os.CopyFS(folder, os.DirFS(filepath.Join(k.dir, "count"))); err != nil {
		return "", err
	}
	_, err = k.kubectl(ctx, "-n", namespaceName, "patch", "daemonset/"+plugin, "-p", fmt.Sprintf(`{"spec":{"template":{"spec":{
"containers":[{"name":"device-plugin","env":[{"name":"LD_PRELOAD","value":"%[1]s/count.so"},{"name":"NVML_COUNTS","value":"%[1]s/counts"}],
"volumeMounts":[{"name":"count","mountPath":"%[1]s"}]}],"volumes":[{"name":"count","hostPath":{"path":"%[1]s"}}]}}}}`, countFolder))
	if err != nil {
		return "", err
	}
	defer func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		_, undone := k.kubectl(limited, "-n", namespaceName, "rollout", "undo", "daemonset/"+plugin)
		err = errors.Join(err, undone, k.waitReady(limited, plugin), k.waitAllocatable(limited, len(k.report.GPUs)), os.RemoveAll(folder))
	}()
	if err := errors.Join(k.waitReady(ctx, plugin), k.waitAllocatable(ctx, len(k.report.GPUs))); err != nil {
		return "", err
	}
	first, err := readCalls(folder)
	if err != nil {
		return "", err
	}
	select {
	case <-ctx.Done():
		return "", context.Cause(ctx)
	case <-time.After(idle):
	}
	all, err := readCalls(folder)
	if err != nil {
		return "", err
	}
	for i := range all {
		all[i].count -= first[i].count
		all[i].took -= first[i].took
	}
	begin, beginTook := k.measureCalls("until it serves", first)
	after, afterTook := k.measureCalls(fmt.Sprintf("in %v, idle", idle), all)
	if begin == 0 {
		return "", errors.New("no call was counted")
	}
	return fmt.Sprintf("%d calls in %.1f ms until it serves; then %d in %.1f ms in %v", begin, milliseconds(beginTook), after, milliseconds(afterTook), idle), nil
}

// measureCalls adds the sum of calls to the figures, and the functions that took longest. Waiting for events takes
// no part.
func (k *kit) measureCalls(when string, calls []call) (count uint64, took time.Duration) {
	calls = slices.DeleteFunc(slices.Clone(calls), func(c call) bool { return strings.HasPrefix(c.name, "nvmlEventSetWait") })
	for _, c := range calls {
		count += c.count
		took += c.took
	}
	k.report.measure("NVML calls "+when, float64(count), "")
	k.report.measure("NVML calls "+when+", time", milliseconds(took), "ms")
	longest := slices.SortedFunc(slices.Values(calls), func(a, b call) int { return int(b.took - a.took) })
	for _, c := range longest[:min(5, len(longest))] {
		if c.count > 0 {
			k.report.measure(fmt.Sprintf("… %d × %s", c.count, c.name), milliseconds(c.took), "ms")
		}
	}
	return count, took
}

var callLine = regexp.MustCompile(`CALL\((\w+)\)`)

// readCalls reads what was counted so far.
func readCalls(folder string) ([]call, error) {
	names, err := os.ReadFile(filepath.Join(folder, "calls.h"))
	if err != nil {
		return nil, err
	}
	counts, err := os.ReadFile(filepath.Join(folder, "counts"))
	if err != nil {
		return nil, err
	}
	var calls []call
	for i, name := range callLine.FindAllSubmatch(names, -1) {
		const size = 16
		if len(counts) < (i+1)*size {
			return nil, errors.New("counts is shorter than calls.h")
		}
		at := counts[i*size:]
		calls = append(calls, call{string(name[1]), binary.NativeEndian.Uint64(at), time.Duration(binary.NativeEndian.Uint64(at[8:]))})
	}
	return calls, nil
}
