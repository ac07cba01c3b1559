// Package apply applies the operator's objects to the cluster by server-side apply, and only
// those that differ. A plan is computed from the wanted objects and the caches. Carrying it out
// is the only part that writes.
package apply

import (
	"cmp"
	"fmt"
	"slices"

	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpuready/gpuready/operator/label"
)

// Object is a wanted object.
type Object struct {
	Object client.Object // with its kind; without status
	Digest string        // equal for equal objects
}

// Key names an object of any kind.
type Key struct {
	Kind            schema.GroupVersionKind
	Namespace, Name string
}

func (k Key) String() string { return k.Kind.Kind + " " + k.Namespace + "/" + k.Name }

// Selector selects the operator's own objects. NVIDIA's operator uses the same value of
// ManagedBy, so that PartOf is required as well.
func Selector() client.MatchingLabels {
	return client.MatchingLabels{label.ManagedBy: label.Operator, label.PartOf: label.Product}
}

// Plan holds the changes to make.
type Plan struct {
	Apply []Change
	Prune []Removal
}

// Removal is an object that is no longer wanted.
type Removal struct {
	Key
	Object client.Object
}

// Change is an object to apply, and the reason.
type Change struct {
	Key
	Object *unstructured.Unstructured
	Digest string
	Why    string // "missing", "changed", "edited", "owner"
}

// Empty reports whether there is nothing to do.
func (p Plan) Empty() bool { return len(p.Apply)+len(p.Prune) == 0 }

// Planner makes plans. It remembers which live objects it has compared, so that an object is not
// compared again when only its status changes. It must be used by one goroutine.
type Planner struct {
	scheme   *runtime.Scheme
	owner    metav1.OwnerReference
	verified map[Key]verified
}

// verified identifies a state of an object that was found to be as wanted.
type verified struct {
	uid        string
	generation int64
	metadata   string // of labels and annotations
	digest     string
}

// NewPlanner returns a Planner of objects of the kinds in scheme.
func NewPlanner(scheme *runtime.Scheme) *Planner {
	return &Planner{scheme: scheme, verified: map[Key]verified{}}
}

// SetOwner sets the owner of the objects in later plans.
func (p *Planner) SetOwner(owner client.Object) error {
	kind, err := p.kind(owner)
	if err != nil {
		return err
	}
	yes := true
	p.owner = metav1.OwnerReference{
		APIVersion: kind.GroupVersion().String(), Kind: kind.Kind, Name: owner.GetName(), UID: owner.GetUID(), Controller: &yes,
	}
	return nil
}

// Ours reports whether the operator made an object. Either its labels or its annotation suffice,
// as people may have removed the other.
func Ours(o client.Object) bool {
	labels := o.GetLabels()
	return labels[label.ManagedBy] == label.Operator && labels[label.PartOf] == label.Product || o.GetAnnotations()[label.Digest] != ""
}

// Plan compares the wanted objects with live, the operator's own objects. An object that is not
// wanted is pruned unless keep returns true for it.
func (p *Planner) Plan(wanted []Object, live []client.Object, keep func(client.Object) bool) (Plan, error) {
	var plan Plan
	have := map[Key]client.Object{}
	for _, o := range live {
		kind, err := p.kind(o)
		if err != nil {
			return Plan{}, err
		}
		have[Key{kind, o.GetNamespace(), o.GetName()}] = o
	}
	for _, w := range wanted {
		kind, err := p.kind(w.Object)
		if err != nil {
			return Plan{}, err
		}
		key := Key{kind, w.Object.GetNamespace(), w.Object.GetName()}
		change, err := p.compare(key, w, have[key])
		if err != nil {
			return Plan{}, fmt.Errorf("%s: %w", key, err)
		}
		switch {
		case change != nil && have[key] != nil && mustReplace(w.Object, have[key]):
			plan.Prune = append(plan.Prune, Removal{key, have[key]}) // its end is an event, after which it is missing
		case change != nil:
			plan.Apply = append(plan.Apply, *change)
		}
		delete(have, key)
	}
	for key, o := range have {
		delete(p.verified, key)
		if o.GetDeletionTimestamp() == nil && !keep(o) {
			plan.Prune = append(plan.Prune, Removal{key, o})
		}
	}
	slices.SortFunc(plan.Prune, func(a, b Removal) int { return cmp.Compare(a.String(), b.String()) })
	return plan, nil
}

// mustReplace reports whether the live object cannot become the wanted one: the handler of a
// RuntimeClass is immutable.
func mustReplace(wanted, live client.Object) bool {
	w, is := wanted.(*nodev1.RuntimeClass)
	if !is {
		return false
	}
	switch l := live.(type) {
	case *nodev1.RuntimeClass:
		return w.Handler != l.Handler
	case *unstructured.Unstructured: // as it was applied last
		handler, _, _ := unstructured.NestedString(l.Object, "handler")
		return w.Handler != handler
	}
	return false
}

// compare returns the change to apply. It returns nil if live is as wanted or being deleted; the
// end of the deletion is an event, after which the object is missing.
func (p *Planner) compare(key Key, w Object, live client.Object) (*Change, error) {
	if live == nil {
		return p.change(key, w, "missing")
	}
	if live.GetDeletionTimestamp() != nil {
		return nil, nil
	}
	now := verified{uid: string(live.GetUID()), generation: live.GetGeneration(), metadata: metadata(live), digest: w.Digest}
	if p.verified[key] == now && p.owned(live) {
		return nil, nil
	}
	switch {
	case live.GetAnnotations()[label.Digest] != w.Digest:
		return p.change(key, w, "changed")
	case !p.owned(live):
		return p.change(key, w, "owner")
	}
	edited, err := firstDifference(w.Object, live)
	if err != nil {
		return nil, err
	}
	if edited != "" {
		return p.change(key, w, "edited: "+edited)
	}
	p.verified[key] = now
	return nil, nil
}

func metadata(o client.Object) string {
	return fmt.Sprint(o.GetLabels(), o.GetAnnotations()) // maps are printed in the order of their keys
}

func (p *Planner) owned(o client.Object) bool {
	return p.owner.UID == "" || slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == p.owner.UID })
}

func (p *Planner) change(key Key, w Object, why string) (*Change, error) {
	fields, err := toMap(w.Object)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: fields}
	u.SetGroupVersionKind(key.Kind)
	annotations := u.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[label.Digest] = w.Digest
	u.SetAnnotations(annotations)
	if p.owner.UID != "" {
		u.SetOwnerReferences([]metav1.OwnerReference{p.owner})
	}
	return &Change{Key: key, Object: u, Digest: w.Digest, Why: why}, nil
}

func (p *Planner) kind(o client.Object) (schema.GroupVersionKind, error) {
	if kind := o.GetObjectKind().GroupVersionKind(); !kind.Empty() {
		return kind, nil
	}
	kinds, _, err := p.scheme.ObjectKinds(o)
	if err != nil {
		return schema.GroupVersionKind{}, fmt.Errorf("%T %s: %w", o, o.GetName(), err)
	}
	return kinds[0], nil
}
