package plugin

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/deviceplugin/kubelet"
	"github.com/gpuready/gpuready/deviceplugin/serve"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// Who offers the GPUs is decided by package serve. This file tells it the node's label, gpu-dra-driver's
// state, which lists the kubelet was sent, and which devices pods hold.

// The time between two readings of the devices that pods hold, while they hold some that gpu-dra-driver
// is to offer: no event reports the end of a pod. After oftenFor it is longer.
const (
	accountInterval     = time.Second
	oftenFor            = time.Minute
	lastAccountInterval = 3 * time.Second
)

// listTimeout bounds the wait for one kubelet to take the empty lists. It then counts as gone: its
// successor is sent them before it can ask for a device, and every allocation is refused meanwhile.
const listTimeout = 5 * time.Second

// newSwitchID returns a name for a change of who offers the GPUs that no other has.
func newSwitchID() string { return rand.Text() }

// restoreServe sets who offers the GPUs, by the record of an earlier process of this boot.
func (p *Plugin) restoreServe(file nodestate.State, err error) {
	label := ""
	validator, labelErr := nodestate.ReadBoot(p.stateDir(nodestate.Validator), p.boot)
	switch known := labelErr == nil && validator.Validator != nil && validator.Validator.NodeLabels != nil; {
	case known:
		label = validator.Validator.Serve
	case err == nil && file.DevicePlugin != nil && !nodestate.IsAbsent(labelErr): // it will be; until then nothing changes
		label = cmp.Or(file.DevicePlugin.Wanted, file.DevicePlugin.Serve)
	}
	_, driverErr := nodestate.ReadBoot(p.stateDir(nodestate.DRADriver), p.boot)
	flag, info := p.cfg.Serve, (*nodestate.DevicePluginInfo)(nil)
	if flag == "" {
		flag = nodestate.ServePlugin
	}
	if err == nil {
		info = file.DevicePlugin
	}
	p.state.serve = serve.New(flag, label, info, !nodestate.IsAbsent(driverErr), newSwitchID())
}

// watchServeLabel follows the node's label until ctx ends. While the validator has not read it, nothing
// changes.
func (p *Plugin) watchServeLabel(ctx context.Context) error {
	p.waitForStart(ctx)
	return nodestate.WatchBoot(ctx, p.stateDir(nodestate.Validator), p.boot, func(s nodestate.State, err error) {
		if err != nil || s.Validator == nil || s.Validator.NodeLabels == nil {
			return
		}
		p.applyServe(func(before serve.State) serve.State { return before.Follow(s.Validator.Serve, newSwitchID()) })
	})
}

// watchDRADriver follows gpu-dra-driver's state until ctx ends.
func (p *Plugin) watchDRADriver(ctx context.Context) error {
	p.waitForStart(ctx)
	return nodestate.WatchHeld(ctx, p.stateDir(nodestate.DRADriver), p.boot, func(s nodestate.State, err error) {
		p.applyServe(func(before serve.State) serve.State { return before.WithReport(s.DRADriver, err) })
	})
}

// applyServe changes who offers the GPUs, and publishes what follows.
func (p *Plugin) applyServe(change func(serve.State) serve.State) {
	p.mu.Lock()
	before := p.state.serve
	p.mu.Unlock()
	if reflect.DeepEqual(before, change(before)) {
		return
	}
	p.applyAndPublish(func(s *state, _ time.Time) bool {
		s.serve = change(s.serve)
		return true
	})
}

// wakeSwitch makes switchServe take the next step, if there is one. p.mu is held.
func (p *Plugin) wakeSwitch() {
	s := p.state.serve
	due := s.NeedsAccount(p.state.withheld)
	p.accountDue.Store(due)
	if due || s.Draining() {
		select {
		case p.serveDue <- struct{}{}:
		default:
		}
	}
}

// switchServe takes the steps of a change of who offers the GPUs, until ctx ends.
func (p *Plugin) switchServe(ctx context.Context) error {
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.serveDue:
		}
		p.mu.Lock()
		s, services := p.state.serve, slices.Collect(maps.Values(p.services))
		p.mu.Unlock()
		switch {
		case s.Draining():
			if p.sendLists(ctx, services) {
				since = time.Now()
				p.applyServe(func(before serve.State) serve.State { return before.ListsSent(newSwitchID()) })
			}
		case p.accountDue.Load():
			account := p.readAccount(ctx, services)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			p.applyServe(func(before serve.State) serve.State { return before.WithAccount(account) })
			if !p.accountDue.Load() {
				continue
			}
			pause := accountInterval
			if time.Since(since) > oftenFor {
				pause = lastAccountInterval
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
				p.mu.Lock()
				p.wakeSwitch()
				p.mu.Unlock()
			}
		}
	}
}

// sendLists waits until the kubelet was sent the lists of all services, which are empty, and until no
// allocation is under way.
func (p *Plugin) sendLists(ctx context.Context, services []*service) bool {
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for _, s := range services {
		if !s.empty.Load() {
			return false // it is advertised again, or not updated yet; both wake this again
		}
		s.server.Flush(limited)
	}
	p.allocations.wait()
	return ctx.Err() == nil
}

// readAccount reads which devices pods hold: from the kubelet's PodResources API, and from its record,
// which has pods that the API lacks: those of which only an init container has a device, and after a
// restart of the kubelet all that it has not seen again. The kubelet writes the record when it is sent
// a list, so that pods that have ended disappear from it.
func (p *Plugin) readAccount(ctx context.Context, services []*service) serve.Account {
	a := serve.Account{Began: time.Now(), Allocated: p.allocations.last()}
	if p.cfg.PodResources == "" {
		a.Err = errors.New("--pod-resources-socket is empty")
		return a
	}
	allocations, claims, err := kubelet.ReadAllocations(ctx, p.podResources(), p.kubeletRecord())
	if err != nil {
		a.Err = err
		return a
	}
	a.Claims = claims
	stale := map[string]bool{} // resources of which the record may have pods that have ended
	for _, held := range allocations {
		stale[held.Resource] = stale[held.Resource] || held.Recorded
		id, _, _ := strings.Cut(held.ID, "::") // the number of a replica
		if uuid, err := gpu.ParseUUID(id); err == nil {
			a.Holders = append(a.Holders, serve.Holder{Resource: held.Resource, UUID: uuid, By: held.By, Namespace: held.Namespace()})
		}
	}
	for _, s := range services {
		if stale[s.resource] {
			s.server.Resend()
		}
	}
	return a
}

// allocations records when this process has allocated each device. The kubelet does not record an
// allocation before it got the response.
type allocations struct {
	mu sync.Mutex
	at map[gpu.UUID]time.Time
}

// record makes an allocation and records it, before anybody learns of it.
func (a *allocations) record(ids []string, make func() (*v1beta1.ContainerAllocateResponse, error)) (*v1beta1.ContainerAllocateResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	response, err := make()
	if err != nil {
		return nil, err
	}
	if a.at == nil {
		a.at = map[gpu.UUID]time.Time{}
	}
	for _, id := range ids {
		id, _, _ := strings.Cut(id, "::")
		a.at[gpu.UUID(id)] = time.Now()
	}
	return response, nil
}

// last returns the last allocation of each device.
func (a *allocations) last() map[gpu.UUID]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.at)
}

// wait waits until no allocation is under way.
func (a *allocations) wait() {
	a.mu.Lock()
	defer a.mu.Unlock()
}

// devices returns the GPUs and MIG devices of the node.
func (s state) devices() []serve.Device {
	var all []serve.Device
	for _, g := range s.health.GPUs() {
		all = append(all, serve.Device{UUID: g.Device.UUID})
		for _, m := range g.Device.MIG {
			all = append(all, serve.Device{UUID: m.UUID, Parent: g.Device.UUID})
		}
	}
	return slices.DeleteFunc(all, func(d serve.Device) bool { return d.UUID == "" })
}

// withheldFaults returns the faults of the devices that the kubelet is not offered.
func (s state) withheldFaults() map[gpu.UUID]gpu.Fault {
	if s.serve.Current == nodestate.ServeDRA || len(s.withheld) == 0 {
		return nil
	}
	faults := make(map[gpu.UUID]gpu.Fault, len(s.withheld))
	for _, w := range s.withheld {
		faults[w.GPU] = gpu.Fault{Reason: w.Reason, Message: w.Message}
	}
	return faults
}

// allocationRefusal returns why no device is allocated; "": devices are.
func (s state) allocationRefusal() string {
	if s.serve.Advertises() {
		return ""
	}
	return "gpu-dra-driver offers this node's GPUs now, by the node's label " + nodestate.ServeLabel + " or --serve; next: let the pod be created again"
}

// withheldText sums up the withheld devices.
func (s state) withheldText() string {
	first := s.withheld[0]
	return fmt.Sprintf("%d of %d devices are withheld; %s: %s: %s", len(s.withheld), len(s.devices()), first.GPU, first.Reason, first.Message)
}

// logServe logs changes of who offers the GPUs, and of the devices that nobody is offered.
func (p *Plugin) logServe(before state) {
	now := p.state
	if before.settings == nil {
		return
	}
	log := p.cfg.Log
	if now.serve.Refused != before.serve.Refused && now.serve.Refused != "" {
		log.Error("the node's label is not followed", "reason", string(serve.ReasonRefused), "message", now.serve.Refused)
	}
	if now.serve.Draining() && !before.serve.Draining() {
		log.Info("switching to gpu-dra-driver: the kubelet is sent empty lists")
	}
	if now.serve.ID != before.serve.ID || now.serve.Current != before.serve.Current {
		log.Info("who offers the GPUs has changed", "serve", now.serve.Current, "switch", now.serve.ID, "withheld", len(now.withheld))
	}
	if now.serve.Current == nodestate.ServeDRA { // otherwise the kubelet's devices become unhealthy, which is logged
		logWithheld(log, before.withheld, now.withheld)
	}
}

// logWithheld logs which devices are withheld from gpu-dra-driver, and which no longer, those with the same
// reason in one line.
func logWithheld(log *slog.Logger, before, now []nodestate.Withheld) {
	was := map[gpu.UUID]nodestate.Withheld{}
	for _, w := range before {
		was[w.GPU] = w
	}
	type why struct{ reason, message string }
	changes := map[why][]gpu.UUID{}
	for _, w := range now {
		if old, found := was[w.GPU]; !found || old.Reason != w.Reason || old.Message != w.Message {
			key := why{string(w.Reason), w.Message}
			changes[key] = append(changes[key], w.GPU)
		}
		delete(was, w.GPU)
	}
	for key, ids := range changes {
		log.Info("withheld from gpu-dra-driver", "gpus", joinIDs(ids), "reason", key.reason, "message", key.message)
	}
	if len(was) > 0 {
		log.Info("gpu-dra-driver may offer", "gpus", joinIDs(slices.Sorted(maps.Keys(was))))
	}
}

// kubeletRecord returns the path of the kubelet's record of the devices that pods hold.
func (p *Plugin) kubeletRecord() string {
	return kubelet.RecordBeside(filepath.Join("/", p.cfg.HostRoot, p.cfg.KubeletSocket))
}
