package plugin

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// PrepareResourceClaims prepares claims for the kubelet.
func (p *Plugin) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	defer p.wakeState() // the claims with administrative access are in it
	return p.preparer.Prepare(ctx, claims), nil
}

// UnprepareResourceClaims forgets claims for the kubelet.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	defer p.wakeState()
	return p.preparer.Unprepare(ctx, claims), nil
}

// partitionFeature is the feature gate without which an API server drops counters (Kubernetes 1.35 and
// older have it off).
const partitionFeature = "DRAPartitionableDevices"

// HandleError logs an error in the background and keeps it for Ready. None ends the process: the
// slices are published again, and a socket that fails makes the kubelet reconnect.
func (p *Plugin) HandleError(_ context.Context, err error, msg string) {
	if dropped := (*resourceslice.DroppedFieldsError)(nil); errors.As(err, &dropped) {
		if slices.Contains(dropped.DisabledFeatures(), partitionFeature) && !p.noCounters.Swap(true) {
			p.cfg.Log.Error("this cluster does not store the counters of partitions: none is published, as the scheduler would choose some that overlap; next: switch the feature gate DRAPartitionableDevices on, and start this program again")
			p.republish()
			return
		}
		p.cfg.Log.Warn("this cluster does not store all fields of the ResourceSlices, such as the taints of unhealthy devices", "message", err.Error())
		return
	}
	p.metrics.publishErrors.Inc()
	log := p.cfg.Log.Error
	if apierrors.IsConflict(err) {
		log = p.cfg.Log.Info // another writer was faster; it is tried again
	}
	log("background error", "message", msg+": "+err.Error())
}

// The kubelet takes a device's health as unknown when it has not heard of it for 30 s.
const healthInterval = 10 * time.Second

// WatchHealthStatus reports the health of all devices at once, when it changes, and every few
// seconds, until ctx ends.
func (p *Plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	again := time.NewTicker(healthInterval)
	defer again.Stop()
	for {
		p.mu.Lock()
		inv, changed := p.current, p.changed
		p.mu.Unlock()
		var report kubeletplugin.DeviceHealthReport
		for _, d := range inv.Devices {
			health := kubeletplugin.DeviceHealth{PoolName: p.cfg.NodeName, DeviceName: d.Name, Health: kubeletplugin.HealthStatusHealthy, LastUpdated: time.Now()}
			if d.Fault.Health == nodestate.Unhealthy {
				health.Health, health.Message = kubeletplugin.HealthStatusUnhealthy, string(d.Fault.Reason)+": "+d.Fault.Message
			}
			report.Devices = append(report.Devices, health)
		}
		select {
		case <-ctx.Done():
			return nil
		case reports <- report:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-again.C:
		}
	}
}

// intercept gives each call of the kubelet a deadline, and records the result of the registration.
func (p *Plugin) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if status, is := req.(*registerapi.RegistrationStatus); is {
		p.registration.Store(status)
		p.wakeState()
		if !status.GetPluginRegistered() {
			p.cfg.Log.Error("the kubelet has refused to register this driver", "message", status.GetError())
		}
	}
	return handle(ctx, req)
}
