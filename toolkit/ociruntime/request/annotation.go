package request

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// What Kubernetes' runtimes say of a container in its annotations.
const (
	// CRI-O adds the annotations of the pod to those of the container, and lays down the
	// container's, as the kubelet gave them, in one of its own as well
	// (internal/factory/container, SpecAddAnnotations).
	crio     = "io.kubernetes.cri-o."
	crioType = crio + "ContainerType"
	crioOwn  = crio + "Annotations"
	// containerd adds what its configuration names in pod_annotations and
	// container_annotations, and does not say which is which
	// (internal/cri/server/container_create.go).
	containerd = "io.kubernetes.cri."
	kubernetes = "io.kubernetes."

	typeSandbox = "sandbox"
)

// trusted returns the annotations by which a container may ask: those that its runtime
// had from the kubelet for this container, which come from a device plugin, and not those
// of its pod, which anybody who makes a pod can write. why says what is wrong with the
// others; it is empty where there is nothing to say.
//
// CRI-O writes its own annotations after those of the pod, as containerd does. A pod can
// forge those of the runtime that it does not run on, and none of the one that it does.
func (a *asker) trusted() (own map[string]string, why string) {
	all := a.spec.Annotations
	switch {
	case a.settings.AcceptPodAnnotations:
		return all, ""
	case podman(all):
		// Podman copies an image's annotations to the container (pkg/specgen/generate/
		// container.go), and an image must not grant itself anything.
		return nil, "with Podman it can be the image's; use podman run --device"
	case !prefixed(all, kubernetes):
		return all, "" // whoever runs a container without Kubernetes says what it gets
	case all[crioType] == typeSandbox:
		return nil, ""
	case prefixed(all, crio) && !prefixed(all, containerd):
		if err := json.Unmarshal([]byte(all[crioOwn]), &own); err != nil {
			return nil, "annotation " + crioOwn + " does not say whether it is the container's"
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

// annotated returns the names that annotations ask for. What a request may not name it
// leaves to the runtime above, which resolves the same annotations.
func (a *asker) annotated() []string {
	keys := a.requests(a.spec.Annotations)
	if len(keys) == 0 {
		return nil
	}
	own, why := a.trusted()
	var names []string
	var refused error
	for _, key := range a.requests(own) {
		for _, word := range words(own[key]) {
			name := spell(word)
			if err := checkName(name); err != nil {
				refused = fmt.Errorf("annotation %s: %w", record.Clean(key, maxQuoted), err)
				continue
			}
			names = append(names, name)
		}
	}
	if refused != nil {
		a.warn("%v; it is passed over", refused)
	}
	others := func(key string) bool { return own[key] != a.spec.Annotations[key] }
	if i := slices.IndexFunc(keys, others); i >= 0 && why != "" {
		a.warn("annotation %s is not honoured: %s", record.Clean(keys[i], maxQuoted), why)
	}
	return unique(names)
}

// requests returns the keys of the annotations that ask for devices, in order.
func (a *asker) requests(annotations map[string]string) []string {
	var keys []string
	for key := range annotations {
		if slices.ContainsFunc(a.settings.AnnotationPrefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// podman reports whether Podman may have made the container. It names itself in an
// annotation, as CRI-O does; an image may have written another name there first.
func podman(annotations map[string]string) bool {
	for key, value := range annotations {
		if strings.HasPrefix(key, "io.podman.annotations.") || key == "io.container.manager" && value != "cri-o" {
			return true
		}
	}
	return false
}
