package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// runPreflight runs gpu-validator preflight in the validator's pod.
func (k *kit) runPreflight(ctx context.Context) (string, error) {
	// Its exit code repeats the verdict.
	out, failure := k.kubectl(ctx, "-n", namespaceName, "exec", "daemonset/"+validator, "-c", "validator", "--",
		"gpu-validator", "preflight", "--results-dir=", "--timeout=40s", "-o", "json")
	var r struct {
		Verdict string
		GPUs    []struct {
			Product string
			Figures []struct {
				Name  string
				Value float64
				Unit  string
			}
			Runs []struct{ Sample, Verdict, Message string }
		}
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return "", errors.Join(failure, err)
	}
	var bad []string
	for i, g := range r.GPUs {
		for _, f := range g.Figures {
			if f.Value > 0 { // a simulated GPU has no speed
				k.report.measure(fmt.Sprintf("GPU %d: %s", i, f.Name), f.Value, f.Unit)
			}
		}
		for _, run := range g.Runs {
			if run.Verdict != "ok" {
				bad = append(bad, fmt.Sprintf("%s on GPU %d: %s: %s", run.Sample, i, run.Verdict, run.Message))
			}
		}
	}
	seen := fmt.Sprintf("%d GPUs are %s", len(r.GPUs), r.Verdict)
	if r.Verdict != "ok" && r.Verdict != "slow" {
		return "", fmt.Errorf("%s: %s", seen, strings.Join(bad, "; "))
	}
	return seen, nil
}

// xids finds the device plugin's count of XIDs.
var xids = regexp.MustCompile(`(?m)^\S*xids_total\{.*xid="(\d+)"\} [1-9]`)

// causeXID runs a kernel that stores where it may not.
func (k *kit) causeXID(ctx context.Context) (string, error) {
	if out, err := k.onNode(ctx, "fault"); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	if k.simulate != "" { // its libcuda stops the kernel, and reports nothing
		if err := k.gpusim(ctx, "xid", "--gpu=0", "--xid=31"); err != nil {
			return "", err
		}
	}
	pod, err := k.kubectl(ctx, "-n", namespaceName, "get", "pods", "-l", "app="+plugin, "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return "", err
	}
	var found []string
	err = until(ctx, func() error {
		metrics, err := k.kubectl(ctx, "get", "--raw", "/api/v1/namespaces/"+namespaceName+"/pods/"+pod+":9402/proxy/metrics")
		if err != nil {
			return err
		}
		if found = xids.FindStringSubmatch(metrics); found == nil {
			return errors.New("the device plugin has counted no XID")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := k.waitAllocatable(ctx, len(k.report.GPUs)); err != nil {
		return "", err
	}
	return fmt.Sprintf("XID %s was counted; nvidia.com/gpu is still %d", found[1], len(k.report.GPUs)), nil
}
