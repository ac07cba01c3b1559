package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/api/v1alpha1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/status"
)

// nvidiaDrivers watches the NVIDIADrivers, while the cluster has their kind.
type nvidiaDrivers struct {
	*optionalWatch
}

var (
	// errNoDrivers means that the cluster has no NVIDIADrivers.
	errNoDrivers = errors.New("the cluster has no CustomResourceDefinition " + v1alpha1.CRDName + "; apply that of this version")
	// errDriversPending means that the NVIDIADrivers are being read for the first time.
	errDriversPending = errors.New("they are being read")
)

func newDrivers(open func(func(error)) (cache.Cache, error), in *inbox, log *slog.Logger) *nvidiaDrivers {
	return &nvidiaDrivers{&optionalWatch{
		name: "NVIDIADrivers", object: untyped(nvidiaDriverKind), open: open, log: log, queue: newServedQueue(),
		handler: inboxHandler(in, updateDriver, removeDriver),
		synced: func() {
			in.enqueue(func(m *model) {
				if !errors.Is(m.driversError, errNoDrivers) { // the definition was deleted meanwhile
					m.driversError, m.changed = nil, true
				}
			})
		},
		failed: func(err error) {
			in.enqueue(func(m *model) {
				if m.driversError != nil && !errors.Is(m.driversError, errNoDrivers) {
					m.driversError, m.changed = fmt.Errorf("read NVIDIADrivers: %w", err), true
				}
			})
		},
	}}
}

// onServed and onUnserved handle the definition of the kind. While it is being deleted, so are the
// NVIDIADrivers, one after the other: what is left of them selects no node.
func (w *nvidiaDrivers) onServed(m *model, definition *metav1.PartialObjectMetadata) {
	if definition.DeletionTimestamp != nil {
		w.onUnserved(m, definition)
		return
	}
	if errors.Is(m.driversError, errNoDrivers) {
		m.driversError, m.changed = errDriversPending, true
		w.queue.Add(true)
	}
}

func (w *nvidiaDrivers) onUnserved(m *model, _ *metav1.PartialObjectMetadata) {
	m.driversError, m.changed = errNoDrivers, true
	clear(m.nvidiaDrivers)
	clear(m.undecoded)
	w.queue.Add(false)
}

// updateDriver stores an NVIDIADriver. A change of its status has no consequences.
func updateDriver(m *model, u *unstructured.Unstructured) {
	d, have := &v1alpha1.NVIDIADriver{}, m.nvidiaDrivers[u.GetName()]
	if have != nil && have.UID == u.GetUID() && notNewer(u.GetResourceVersion(), have.ResourceVersion) {
		return
	}
	text, err := json.Marshal(u.Object)
	if err == nil {
		err = json.Unmarshal(text, d)
	}
	if err != nil { // the definition is another one, and too different
		m.undecoded[u.GetName()], m.changed = err, true
		return
	}
	m.changed = m.changed || m.undecoded[d.Name] != nil || have == nil || have.UID != d.UID || have.Generation != d.Generation || !have.DeletionTimestamp.Equal(d.DeletionTimestamp)
	m.nvidiaDrivers[d.Name] = d
	delete(m.undecoded, d.Name)
}

func removeDriver(m *model, u *unstructured.Unstructured) {
	delete(m.undecoded, u.GetName())
	delete(m.nvidiaDrivers, u.GetName())
	m.changed = true
}

// unreadDrivers returns why it is not known which nodes the NVIDIADrivers select, or nil. One that
// has fields of other types may select any node.
func (m *model) unreadDrivers() error {
	if m.driversError != nil || len(m.undecoded) == 0 {
		return m.driversError
	}
	name := slices.Min(slices.Collect(maps.Keys(m.undecoded)))
	return fmt.Errorf("read NVIDIADriver %s: %w", name, m.undecoded[name])
}

// readingDrivers reports whether the NVIDIADrivers are needed and being read for the first time.
func (m *model) readingDrivers() bool {
	if !errors.Is(m.driversError, errDriversPending) {
		return false
	}
	policy, _ := m.inForce()
	return policy != nil && policy.Spec.Driver.UsesNVIDIADrivers()
}

// selectDrivers selects each node's NVIDIADriver again if the policy or an NVIDIADriver has changed.
func (m *model) selectDrivers() {
	policy, _ := m.inForce()
	var by strings.Builder
	if policy != nil && policy.Spec.Driver.UsesNVIDIADrivers() {
		fmt.Fprintf(&by, "%s/%d %v", policy.UID, policy.Generation, m.unreadDrivers())
		for _, name := range slices.Sorted(maps.Keys(m.nvidiaDrivers)) {
			d := m.nvidiaDrivers[name]
			fmt.Fprintf(&by, " %s/%s/%d/%t", name, d.UID, d.Generation, d.DeletionTimestamp != nil)
		}
	}
	if by.String() == m.selectedBy {
		return
	}
	m.selectedBy, m.selection = by.String(), nil
	if m.selectedBy != "" {
		unread := ""
		if err := m.unreadDrivers(); err != nil {
			unread = err.Error()
		}
		m.selection = driver.NewSelection(&policy.Spec, slices.Collect(maps.Values(m.nvidiaDrivers)), unread)
	}
	for _, on := range m.nodes {
		if with := m.withDrivers(on.node); with != on.node {
			on.node, on.placed = with, nil
		}
	}
}

// withDrivers returns a Node as one of those that its NVIDIADrivers select.
func (m *model) withDrivers(n *fleet.Node) *fleet.Node {
	if !n.GPU {
		return n
	}
	return n.WithDrivers(m.selection.Of(n.Name, n.AllLabels))
}

// reportDrivers writes the status of the NVIDIADrivers.
func (c *Controller) reportDrivers(ctx context.Context, s *desired, tally status.Tally, now time.Time) {
	if c.model.handOver() {
		return // they are NVIDIA's operator's
	}
	for _, name := range slices.Sorted(maps.Keys(c.model.nvidiaDrivers)) {
		d := c.model.nvidiaDrivers[name]
		in := status.DriverInput{
			Driver: d, Now: now, Namespace: cmp.Or(s.elsewhere, c.Cluster.Namespace), Unused: status.Unused(s.policy), Tally: tally, Choices: s.choices,
			Unserved: append(d.Unserved(), s.unservedOf[name]...), Upgrade: upgradeStatus(c.planOf[name], c.blocked), UpgradeError: upgradeFailure(c.planOf[name]),
		}
		for _, p := range s.problems {
			if p.NVIDIADriver == name {
				in.Problems = append(in.Problems, status.Problem{Reason: string(p.Reason), Message: p.Message})
			}
		}
		c.writeDriverStatus(ctx, d, status.ComputeDriver(in))
	}
}

// writeDriverStatus writes an NVIDIADriver's status if it has changed.
func (c *Controller) writeDriverStatus(ctx context.Context, d *v1alpha1.NVIDIADriver, sum v1alpha1.NVIDIADriverStatus) {
	if equality.Semantic.DeepEqual(d.Status, sum) {
		return
	}
	_ = c.request("status of NVIDIADriver "+d.Name, notUrgent, func() (func(), error) {
		ctx, cancel := context.WithTimeout(ctx, apply.Timeout)
		defer cancel()
		patch, err := statusPatch(d.UID, sum)
		if err != nil {
			return nil, err
		}
		written := partial(nvidiaDriverKind)
		written.Name = d.Name
		err = c.Client.Status().Patch(ctx, written, patch, client.FieldOwner(label.FieldManager))
		return func() {
			if err != nil || c.model.nvidiaDrivers[d.Name] != d || written.Generation != d.Generation {
				return // it is gone, or has changed since: the watch brings what it is now
			}
			next := *d
			next.ResourceVersion, next.Status = written.ResourceVersion, sum
			c.model.nvidiaDrivers[d.Name] = &next
		}, client.IgnoreNotFound(err)
	})
}
