package request

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// The annotations that Kubernetes' runtimes set on a container.
const (
	// CRI-O adds the annotations of the pod to those of the container. It also records the
	// container's own ones, as received from the kubelet, in an annotation
	// (internal/factory/container, SpecAddAnnotations).
	crio     = "io.kubernetes.cri-o."
	crioType = crio + "ContainerType"
	crioOwn  = crio + "Annotations"
	// containerd adds those that its configuration names in pod_annotations and
	// container_annotations, without a distinction
	// (internal/cri/server/container_create.go).
	containerd = "io.kubernetes.cri."
	kubernetes = "io.kubernetes."

	typeSandbox = "sandbox"
)

// trusted returns the annotations by which a container may request devices: those that its
// runtime received from the kubelet for this container, which come from a device plugin.
// Annotations of the pod are not trusted, since anybody who creates a pod can write them.
// why is the reason why the others are not trusted, "" if there is none.
//
// CRI-O writes its own annotations after those of the pod, as containerd does. So a pod can
// only forge those of a runtime that it does not run on.
func (a *reader) trusted() (own map[string]string, why string) {
	all := a.spec.Annotations
	switch {
	case a.settings.AcceptPodAnnotations:
		return all, ""
	case podman(all):
		// Podman copies an image's annotations to the container (pkg/specgen/generate/
		// container.go), and an image must not grant itself anything.
		return nil, "with Podman it can be the image's; use podman run --device"
	case !prefixed(all, kubernetes):
		return all, "" // without Kubernetes, the person who runs the container decides
	case all[crioType] == typeSandbox:
		return nil, ""
	case prefixed(all, crio) && !prefixed(all, containerd):
		if err := json.Unmarshal([]byte(all[crioOwn]), &own); err != nil {
			return nil, "annotation " + crioOwn + " does not show whether it is the container's"
		}
		return own, "it is the pod's, which anybody who makes a pod can write; request GPUs as resources"
	}
	return nil, "it can be the pod's, which anybody who makes a pod can write; with containerd have CDI on (enable_cdi), which resolves those of device plugins, or request GPUs as resources"
}

func prefixed(annotations map[string]string, prefix string) bool {
	for key := range annotations {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// annotated returns the names that annotations request. It leaves names that a request may
// not contain to the runtime above, which resolves the same annotations.
func (a *reader) annotated() []string {
	keys := a.requests(a.spec.Annotations)
	if len(keys) == 0 {
		return nil
	}
	own, why := a.trusted()
	var names []string
	var refused error
	for _, key := range a.requests(own) {
		for _, word := range words(own[key]) {
			name := normalize(word)
			if err := checkName(name); err != nil {
				refused = fmt.Errorf("annotation %s: %w", record.Clean(key, maxQuoted), err)
				continue
			}
			names = append(names, name)
		}
	}
	if refused != nil {
		a.warn("%v; it is ignored", refused)
	}
	others := func(key string) bool { return own[key] != a.spec.Annotations[key] }
	if i := slices.IndexFunc(keys, others); i >= 0 && why != "" {
		a.warn("annotation %s is not honoured: %s", record.Clean(keys[i], maxQuoted), why)
	}
	return unique(names)
}

// requests returns the keys of the annotations that request devices, in order.
func (a *reader) requests(annotations map[string]string) []string {
	var keys []string
	for key := range annotations {
		if slices.ContainsFunc(a.settings.AnnotationPrefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// podman reports whether Podman may have created the container. It names itself in an
// annotation, as CRI-O does; an image may have set another name there first.
func podman(annotations map[string]string) bool {
	for key, value := range annotations {
		if strings.HasPrefix(key, "io.podman.annotations.") || key == "io.container.manager" && value != "cri-o" {
			return true
		}
	}
	return false
}
