package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// shape describes how a configuration presents whole GPUs. MIG devices are the same in every shape.
// A GPU that recovers after a quiet time always does so after a moment.
type shape struct {
	what     string
	text     string // of the file, after the common part
	resource string
	replicas int // 0: not shared
	without  int // index of the GPU that is not advertised; -1: all are advertised
}

const common = "version: v1\nflags: {migStrategy: mixed}\nhealth: {quietPeriod: 2s}\n"

var plain = shape{what: "nothing special", resource: gpuResource, without: -1}

var shapes = []shape{
	plain,
	{"shared", "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 3}]}}\n", gpuResource, 3, -1},
	{"shared by another name", "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}}\n", gpuResource + ".shared", 2, -1},
	{"another name", "resources: {gpus: [{pattern: '*', name: soaked}]}\n", "nvidia.com/soaked", 0, -1},
	{"one left out", "devices: {exclude: [0]}\n", gpuResource, 0, 0},
}

// bad holds configurations that must change nothing.
var bad = []string{
	"", "{", common[:20], common + "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 0}]}}\n", common + "migStategy: none\n",
	common + "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}, timeSlicing: {resources: [{name: gpu, replicas: 2}]}}\n",
}

// devices returns the devices to serve for a GPU; t.mu must be held.
func (t *truth) devices(c *gpuState) []part {
	var all []part
	for _, p := range c.parts {
		switch {
		case c.index == t.shape.without:
		case p.resource != gpuResource:
			all = append(all, p)
		case t.shape.replicas == 0:
			all = append(all, part{t.shape.resource, p.id})
		default:
			for n := range t.shape.replicas {
				all = append(all, part{t.shape.resource, fmt.Sprintf("%s::%d", p.id, n)})
			}
		}
	}
	return all
}

// configure rewrites the file, either in place, byte by byte, or by replacing it.
func (n *node) configure(text string, inPlace bool) error {
	path := n.path("config.yaml")
	if inPlace {
		return os.WriteFile(path, []byte(text), 0o600)
	}
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// applyShape gives the plugin another configuration.
func (s *soak) applyShape(to shape, inPlace bool) error {
	s.truth.mu.Lock()
	defer s.truth.mu.Unlock()
	s.truth.shape = to
	for _, c := range s.truth.gpus {
		c.record("configuration: %s", to.what)
	}
	s.count("configuration")
	return s.node.configure(common+to.text, inPlace)
}

// configurations edits the plugin's file. A rejected edit changes nothing, and the plugin reports
// it.
func (s *soak) configurations(ctx context.Context, r *rand.Rand) error {
	f := fate{soak: s, rand: r}
	for f.pause(ctx, 4*s.pace) {
		if r.IntN(3) > 0 {
			if err := s.applyShape(pick(r, shapes), r.IntN(2) == 0); err != nil {
				return err
			}
			continue
		}
		s.truth.mu.Lock()
		good := s.truth.shape
		s.truth.mu.Unlock()
		text := pick(r, bad)
		if err := s.node.configure(text, r.IntN(2) == 0); err != nil {
			return err
		}
		s.count("refused configuration")
		waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.settle)
		err := s.node.waitState(waiting, func(st nodestate.State) bool { return st.Reason == "ConfigRefused" })
		cancel()
		if err != nil {
			return fmt.Errorf("the plugin's state does not say within %v that a configuration is refused:\n%s", s.settle, text)
		}
		f.pause(ctx, 10*time.Second)
		if err := s.applyShape(good, r.IntN(2) == 0); err != nil {
			return err
		}
	}
	return nil
}
