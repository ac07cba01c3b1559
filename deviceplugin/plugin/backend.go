package plugin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/gpuready/gpuready/internal/cdi"
	"github.com/gpuready/gpuready/internal/gpu"
)

// Allocate answers with the CDI names of the devices. What it refuses stands in
// the pod's events.
func (p *Plugin) Allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	resp, err := p.allocate(ids)
	p.metrics.allocated(err)
	if err != nil {
		p.cfg.Log.Warn("allocation refused", "reason", status.Code(err).String(), "message", status.Convert(err).Message())
	}
	return resp, err
}

func (p *Plugin) allocate(ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	if len(ids) == 0 {
		return nil, status.Error(codes.InvalidArgument, "no devices of "+Resource+" were asked for")
	}
	v := p.view.Load()
	resp := &v1beta1.ContainerAllocateResponse{}
	for i, id := range ids {
		d, known := v.byID[id]
		switch {
		case !known:
			return nil, status.Errorf(codes.NotFound, "%s has no device %q; it has %s", Resource, id, v.names())
		case slices.Contains(ids[:i], id):
			return nil, status.Errorf(codes.InvalidArgument, "device %s was asked for twice", id)
		case !d.Healthy():
			return nil, status.Errorf(codes.FailedPrecondition, "device %s has been unhealthy since %s: %s", id, d.Since.UTC().Format(time.RFC3339), d.Fault)
		}
		resp.CdiDevices = append(resp.CdiDevices, &v1beta1.CDIDevice{Name: cdi.GPUName(gpu.UUID(id))})
	}
	return resp, nil
}

func (v *view) names() string {
	var ids []string
	for _, d := range v.devices {
		ids = append(ids, d.ID)
	}
	if len(ids) == 0 {
		return "none"
	}
	return strings.Join(ids, ", ")
}

// Prefer chooses devices that are near to each other. One that has become
// unhealthy since the kubelet asked is chosen last, as Allocate would refuse it.
func (p *Plugin) Prefer(available, include []string, size int) ([]string, error) {
	ids, err := p.view.Load().chooser.Prefer(available, include, size)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, fmt.Sprintf("prefer devices of %s: %v", Resource, err))
	}
	return ids, nil
}
