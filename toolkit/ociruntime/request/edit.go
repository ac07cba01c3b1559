package request

import (
	"fmt"
	"os"
	"slices"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/toolkit/hook/joined"
)

// filter returns the edits for containers with the capabilities.
func filter(e specs.ContainerEdits, by Capabilities) specs.ContainerEdits {
	if by == allCapabilities {
		return e
	}
	e.DeviceNodes = slices.DeleteFunc(slices.Clone(e.DeviceNodes), func(n *specs.DeviceNode) bool { return !by.covers(n.Path) })
	e.Mounts = slices.DeleteFunc(slices.Clone(e.Mounts), func(m *specs.Mount) bool { return !by.covers(m.ContainerPath) })
	var hooks []*specs.Hook
	for _, h := range e.Hooks {
		if h = filterHook(h, by); h != nil {
			hooks = append(hooks, h)
		}
	}
	e.Hooks = hooks
	return e
}

// filterHook removes the links to files that the capabilities exclude, and the profile for
// graphics if they exclude it. It returns nil if nothing remains. Other hooks are unchanged.
func filterHook(h *specs.Hook, by Capabilities) *specs.Hook {
	if len(h.Args) < 2 {
		return h
	}
	hooks, ok := joined.Hooks(h.Args[1:])
	if !ok {
		return h
	}
	for i, args := range hooks {
		switch args[0] {
		case "create-symlinks":
			hooks[i] = filterArgs(args, by)
		case "update-application-profile":
			if by&(graphics|display) == 0 {
				hooks[i] = nil
			}
		}
	}
	args := joined.Args(hooks...)
	if args == nil {
		return nil
	}
	filtered := *h
	filtered.Args = append(slices.Clone(h.Args[:1]), args...)
	return &filtered
}

// filterArgs removes the links from the arguments of create-symlinks. It returns nil if no link
// remains.
func filterArgs(all []string, by Capabilities) []string {
	args := slices.Clone(all[:1])
	for i := 1; i < len(all); i++ {
		arg := all[i]
		value, inline := strings.CutPrefix(arg, "--link=")
		switch {
		case inline:
		case arg == "--link" && i+1 < len(all):
			i++
			value = all[i]
		default:
			args = append(args, arg)
			continue
		}
		if _, link, ok := strings.Cut(value, "::"); !ok || by.covers(link) {
			args = append(args, "--link", value)
		}
	}
	if len(args) == 1 {
		return nil
	}
	return args
}

// applyEdits applies the edits that the configuration does not have yet.
func applyEdits(spec *oci.Spec, edits []specs.ContainerEdits) error {
	for i := range edits {
		removePresent(spec, &edits[i])
		if err := (&cdilib.ContainerEdits{ContainerEdits: &edits[i]}).Apply(spec); err != nil {
			return fmt.Errorf("CDI: %w", err)
		}
	}
	return nil
}

// removePresent removes from the edits what the configuration already has. Environment
// variables are set again, which changes nothing.
func removePresent(spec *oci.Spec, e *specs.ContainerEdits) {
	e.DeviceNodes = slices.DeleteFunc(slices.Clone(e.DeviceNodes), func(n *specs.DeviceNode) bool { return hasDevice(spec, n) })
	e.Mounts = slices.DeleteFunc(slices.Clone(e.Mounts), func(m *specs.Mount) bool {
		return slices.ContainsFunc(spec.Mounts, func(o oci.Mount) bool { return o.Destination == m.ContainerPath && o.Source == m.HostPath })
	})
	e.Hooks = slices.DeleteFunc(slices.Clone(e.Hooks), func(h *specs.Hook) bool {
		return slices.ContainsFunc(hooks(spec, h.HookName), func(o oci.Hook) bool { return o.Path == h.Path && slices.Equal(o.Args, h.Args) })
	})
}

// hasDevice reports whether the container has a device node and may use it.
func hasDevice(spec *oci.Spec, n *specs.DeviceNode) bool {
	if spec.Linux == nil || spec.Linux.Resources == nil {
		return false
	}
	i := slices.IndexFunc(spec.Linux.Devices, func(d oci.LinuxDevice) bool { return d.Path == n.Path })
	if i < 0 {
		return false
	}
	d := spec.Linux.Devices[i]
	if !sameDevice(n, d) {
		return false
	}
	access := n.Permissions
	if access == "" {
		access = "rwm"
	}
	return slices.ContainsFunc(spec.Linux.Resources.Devices, func(r oci.LinuxDeviceCgroup) bool {
		return r.Allow && r.Type == d.Type && r.Major != nil && *r.Major == d.Major && r.Minor != nil && *r.Minor == d.Minor && includes(r.Access, access)
	})
}

// sameDevice reports whether the numbers are those of the host's node.
func sameDevice(n *specs.DeviceNode, d oci.LinuxDevice) bool {
	if n.Type != "" && n.Major != 0 {
		return n.Type == d.Type && n.Major == d.Major && n.Minor == d.Minor
	}
	at := n.HostPath
	if at == "" {
		at = n.Path
	}
	info, err := os.Lstat(at) // as the CDI library does
	if err != nil {
		return false // the library then returns the error
	}
	major, minor, ok := host.Device(info)
	return ok && int64(major) == d.Major && int64(minor) == d.Minor
}

func includes(access, wanted string) bool {
	return !strings.ContainsFunc(wanted, func(r rune) bool { return !strings.ContainsRune(access, r) })
}

func hooks(spec *oci.Spec, name string) []oci.Hook {
	h := spec.Hooks
	if h == nil {
		return nil
	}
	switch name {
	case cdilib.PrestartHook:
		return h.Prestart //nolint:staticcheck // a specification may have one
	case cdilib.CreateRuntimeHook:
		return h.CreateRuntime
	case cdilib.CreateContainerHook:
		return h.CreateContainer
	case cdilib.StartContainerHook:
		return h.StartContainer
	case cdilib.PoststartHook:
		return h.Poststart
	case cdilib.PoststopHook:
		return h.Poststop
	}
	return nil
}
