package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// scc is the part of a SecurityContextConstraints that applies to the operands' pods.
type scc struct {
	AllowPrivilegedContainer, AllowPrivilegeEscalation                             bool
	AllowHostDirVolumePlugin, AllowHostIPC, AllowHostNetwork, AllowHostPID         bool
	AllowHostPorts                                                                 bool
	AllowedCapabilities, DefaultAddCapabilities, RequiredDropCapabilities, Volumes []string
	RunAsUser                                                                      struct{ Type string }
	SELinuxContext                                                                 struct {
		Type           string
		SELinuxOptions selinux
	}
	Users []string
}

type selinux struct{ Type string }

type security struct {
	Privileged, AllowPrivilegeEscalation *bool
	RunAsUser                            *int64
	SELinuxOptions                       *selinux
	Capabilities                         struct{ Add, Drop []string }
}

type container struct {
	Name            string
	Ports           []struct{ ContainerPort, HostPort int }
	SecurityContext security
}

type pod struct {
	ServiceAccountName            string
	HostNetwork, HostPID, HostIPC bool
	SecurityContext               security
	InitContainers, Containers    []container
	Volumes                       []object
}

func (p pod) privileged() bool {
	return slices.ContainsFunc(slices.Concat(p.InitContainers, p.Containers), func(c container) bool {
		return c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	})
}

// violations returns why OpenShift would not admit a pod under the constraints.
func (s scc) violations(p pod) (why []string) {
	no := func(is bool, format string, args ...any) {
		if is {
			why = append(why, fmt.Sprintf(format, args...))
		}
	}
	no(p.HostNetwork && !s.AllowHostNetwork, "hostNetwork")
	no(p.HostPID && !s.AllowHostPID, "hostPID")
	no(p.HostIPC && !s.AllowHostIPC, "hostIPC")
	for _, v := range p.Volumes {
		for kind := range v {
			no(kind != "name" && !slices.Contains(s.Volumes, kind), "volume %v of kind %s", v["name"], kind)
			no(kind == "hostPath" && !s.AllowHostDirVolumePlugin, "volume %v of the host", v["name"])
		}
	}
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		for _, port := range c.Ports {
			// With the host's network every port is a host port.
			no((p.HostNetwork || port.HostPort != 0) && !s.AllowHostPorts, "%s: port %d of the host", c.Name, port.ContainerPort)
		}
		why = append(why, s.security(c.Name, p.SecurityContext, c.SecurityContext)...)
	}
	return why
}

func (s scc) security(name string, pod, c security) (why []string) {
	no := func(is bool, format string, args ...any) {
		if is {
			why = append(why, name+": "+fmt.Sprintf(format, args...))
		}
	}
	no(c.Privileged != nil && *c.Privileged && !s.AllowPrivilegedContainer, "privileged")
	no(!s.AllowPrivilegeEscalation && (c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation), "allowPrivilegeEscalation")
	for _, add := range c.Capabilities.Add {
		no(!slices.Contains(s.AllowedCapabilities, add) && !slices.Contains(s.AllowedCapabilities, "*"), "capability %s", add)
	}
	for _, drop := range s.RequiredDropCapabilities {
		no(!slices.Contains(c.Capabilities.Drop, drop), "does not drop %s", drop)
	}
	no(s.RunAsUser.Type != "RunAsAny", "runAsUser %v by %s", c.RunAsUser, s.RunAsUser.Type)
	for _, options := range []*selinux{pod.SELinuxOptions, c.SELinuxOptions} {
		no(options != nil && s.SELinuxContext.Type == "MustRunAs" && options.Type != s.SELinuxContext.SELinuxOptions.Type, "SELinux type %v", options)
	}
	return why
}

// sccs returns the chart's constraints, by ServiceAccount.
func sccs(t *testing.T, values string) map[string]scc {
	t.Helper()
	found := map[string]scc{}
	for _, o := range render(t, renderOptions{Versions: []string{openshift}}, values) {
		if o["kind"] != "SecurityContextConstraints" {
			continue
		}
		var s scc
		convert(t, o, &s)
		for _, user := range s.Users {
			account := user[strings.LastIndex(user, ":")+1:]
			require.NotContains(t, found, account)
			found[account] = s
		}
	}
	return found
}

func convert(t *testing.T, from, to any) {
	t.Helper()
	text, err := yaml.Marshal(from)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, to))
}

// OpenShift admits every pod that the operator may create, in all cases of its golden
// files, under the constraints of its ServiceAccount. `make operands` renders them.
func TestOpenShiftAdmitsEveryOperand(t *testing.T) {
	const host = "dcgm: {hostNetwork: true}"
	now, older := sccs(t, host), sccs(t, "platform: {olderNodes: true}\n"+host)
	require.False(t, sccs(t, "")["gpu-dcgm"].AllowHostNetwork, "only where a policy wants it")
	files, err := filepath.Glob("../../bin/operands/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files, "run make operands")
	seen := map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for document := range strings.SplitSeq("\n"+string(text), "\n---") {
			var o object
			require.NoError(t, yaml.Unmarshal([]byte(document), &o), file)
			if o["kind"] != "DaemonSet" {
				continue
			}
			var p pod
			convert(t, o["spec"].(object)["template"].(object)["spec"], &p)
			at := fmt.Sprintf("%s: %v of %s", filepath.Base(file), o["metadata"].(object)["name"], p.ServiceAccountName)
			require.Contains(t, older, p.ServiceAccountName, at)
			require.Empty(t, older[p.ServiceAccountName].violations(p), at)
			if s := now[p.ServiceAccountName]; s.AllowPrivilegedContainer || !p.privileged() {
				require.Empty(t, s.violations(p), at)
			}
			seen[p.ServiceAccountName]++
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(now)), slices.Sorted(maps.Keys(seen)), "an SCC is for pods that there are")
}
