package upgrade

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
)

// Policy is the parsed spec.driver.upgradePolicy.
type Policy struct {
	Auto           bool
	MaxParallel    int                 // limit of nodes whose upgrade has begun and not ended; 0: no limit
	MaxUnavailable *intstr.IntOrString // limit of nodes with a target that are cordoned or not ready; percentages are rounded up; nil: no limit
	// Jobs selects the pods to wait for, up to JobsTimeout (0: forever); nil selects none.
	Jobs        labels.Selector
	JobsTimeout time.Duration
	Deletion    Eviction
	Drain       *Eviction // nil: only pods that use GPUs are evicted
}

// Eviction configures how pods are removed from a node.
type Eviction struct {
	Force          bool            // also pods that no controller recreates
	DeleteEmptyDir bool            // also pods that lose emptyDir volumes
	Timeout        time.Duration   // 0: no timeout
	Selector       labels.Selector // for Deletion: additional pods; for Drain: only these pods; nil: unset
}

// unavailable returns how many of total nodes may be unavailable.
func (p Policy) unavailable(total int) int {
	if p.MaxUnavailable == nil {
		return total
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(p.MaxUnavailable, total, true)
	if err != nil {
		// The schema refuses such a value; no node is cordoned because of one.
		return 0
	}
	return n
}

// ParsePolicy parses a policy; nil leaves drivers as they are. The error names the field that
// cannot be parsed.
func ParsePolicy(spec *v1.DriverUpgradePolicySpec) (Policy, error) {
	if spec == nil {
		return Policy{}, nil
	}
	limit := spec.Unavailable()
	p := Policy{Auto: spec.AutoUpgrade, MaxParallel: spec.Parallel(), MaxUnavailable: &limit, Deletion: Eviction{Timeout: seconds(300)}}
	var problems []error
	if wait := spec.WaitForCompletion; wait != nil {
		p.Jobs = selector("waitForCompletion", wait.PodSelector, &problems)
		p.JobsTimeout = seconds(wait.TimeoutSecond)
	}
	if del := spec.PodDeletion; del != nil {
		p.Deletion = Eviction{
			Force: del.Force, DeleteEmptyDir: del.DeleteEmptyDir, Timeout: seconds(del.Timeout()),
			Selector: selector("podDeletion", del.PodSelector, &problems),
		}
	}
	if drain := spec.DrainSpec; drain != nil && drain.Enable {
		p.Drain = &Eviction{
			Force: drain.Force, DeleteEmptyDir: drain.DeleteEmptyDir, Timeout: seconds(drain.Timeout()),
			Selector: selector("drain", drain.PodSelector, &problems),
		}
	}
	return p, errors.Join(problems...)
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// selector parses a label selector; an empty one is nil.
func selector(field, text string, problems *[]error) labels.Selector {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	s, err := labels.Parse(text)
	if err != nil {
		*problems = append(*problems, fmt.Errorf("spec.driver.upgradePolicy.%s.podSelector: %w", field, err))
		return nil
	}
	return s
}
