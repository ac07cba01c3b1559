package static

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/test/lab/golden"
)

// This file has the reasons in the tables of docs/install.md. The tests compare the rest of the tables
// with the manifests, and write them.

//go:generate go test -tags grpcnotrace -run ^TestInstallPage . -update

const installPage = "../../docs/install.md"

// requireTable requires that a section of docs/install.md has a table.
func requireTable(t *testing.T, section, head string, rows []string) {
	t.Helper()
	line := strings.Repeat("|---", strings.Count(head, "|")-1) + "|\n"
	begin := "<!-- " + section + ": made by go generate ./deployments/static -->\n"
	golden.RequireSection(t, installPage, begin, "<!-- end of "+section+" -->\n", head+"\n"+line+strings.Join(rows, ""))
}

// part documents containers that have the same rights.
type part struct {
	name       string
	containers []string // as containerKey returns them; none: the operator creates them
	user       string
	selinux    string
	why        string
}

var parts = []part{
	{"toolkit", []string{"toolkit"}, "0, privileged", "spc_t", "opens GPUs that nobody injected, which the device cgroup " +
		"refuses to all others; makes device nodes; talks to the runtime's sockets, and to systemd where it may restart " +
		"a runtime. On the host it can write only what is mounted by name"},
	{"device-plugin", []string{"device-plugin"}, "0", "spc_t", "the kubelet's folder is root's, mode 0750; GPUs are injected"},
	{"dra-driver (`dra-driver.yaml`)", []string{"dra-driver"}, "0", "spc_t", "the kubelet's folders are root's; it opens " +
		"no GPU. API: its own slices, claims to read ([dra.md](dra.md))"},
	{"validator", []string{"validator"}, "0", "spc_t", "as the device plugin; runs vectoradd. API: " +
		"[below](#what-the-validators-token-allows)"},
	{"wait (init)", []string{"wait"}, "0", "spc_t", "reads the toolkit's state"},
	{"the validator's pod, validation-job, examples", []string{"a user's pod"}, "not 0", "container_t", "like any user's pod"},
	{"driver (simulated)", []string{"driver"}, "0, privileged", "spc_t", "mounts a driver root on the host"},
	{"nvidia-driver-ctr (`driver.yaml`)", []string{"nvidia-driver-ctr"}, "0, privileged", "spc_t",
		"loads kernel modules, mounts the driver root on the host, names processes that use the driver"},
	{"host-driver (init, `driver.yaml`)", []string{"host-driver"}, "65534", "spc_t", "reads which driver the host has"},
	{"share (init), openshift-driver-toolkit-ctr (the operator's, on OpenShift)", nil, "64180, used by nothing else",
		"container_t", "compile the driver's modules; they mount nothing of the host"},
	{"mps-daemon (`mps.yaml`)", []string{"mps-daemon"}, "0, privileged", "spc_t", "sets the GPUs' compute mode, runs the " +
		"driver's MPS programs in the driver's root, which need the host's PID namespace"},
	{"uninstall", []string{"uninstall"}, "0, privileged", "spc_t", "removes what the toolkit installed, wherever that " +
		"is, and restarts a runtime that was configured"},
	{"mps-uninstall (`uninstall.yaml`)", []string{"mps-uninstall"}, "0, privileged", "spc_t", "unmounts on the host what " +
		"mps-daemon mounted"},
	{"shadow of `examples/shadow.yaml`", []string{"shadow"}, "0, privileged", "spc_t", "nothing injects the GPUs; it " +
		"writes nothing ([from-nvidia.md](from-nvidia.md))"},
	{"device-plugin, validator of `gpuready-privileged.yaml`",
		[]string{"device-plugin (privileged)", "validator (privileged)"}, "0, privileged", "spc_t",
		"nothing else injects GPUs into them"},
}

// containerKey returns the name under which the tables of docs/install.md have a container.
func containerKey(w workload, c corev1.Container) string {
	switch program, _ := ours(c); {
	case strings.HasPrefix(w.file, "examples/") && c.Name != "shadow",
		w.file == "validation-job.yaml", c.Name == "done", program == "gpu-operator":
		return "a user's pod"
	case strings.Contains(w.file, "privileged") && c.Name != "toolkit":
		return c.Name + " (privileged)"
	}
	return c.Name
}

// userOf returns as whom a container runs, and the type that SELinux gives it.
func userOf(w workload, c corev1.Container) (user, selinux string) {
	s := c.SecurityContext
	uid, selinux := s.RunAsUser, "container_t"
	options := s.SELinuxOptions
	if pod := w.pod.Spec.SecurityContext; pod != nil {
		if uid == nil {
			uid = pod.RunAsUser
		}
		if options == nil {
			options = pod.SELinuxOptions
		}
	}
	if options != nil {
		selinux = options.Type
	}
	switch {
	case s.Privileged != nil && *s.Privileged:
		return fmt.Sprintf("%d, privileged", *uid), "spc_t"
	case uid != nil && (*uid == 0 || selinux == "spc_t"):
		return fmt.Sprint(*uid), selinux
	}
	return "not 0", selinux
}

// TestInstallPageListsParts compares the table "What each part may do, and why" with the manifests.
func TestInstallPageListsParts(t *testing.T) {
	found := map[string]bool{}
	for _, w := range workloads(t) {
		for _, c := range w.containers() {
			key := containerKey(w, c)
			i := slices.IndexFunc(parts, func(p part) bool { return slices.Contains(p.containers, key) })
			require.GreaterOrEqual(t, i, 0, "%s/%s: parts does not have it", w, c.Name)
			found[key] = true
			user, selinux := userOf(w, c)
			require.Equal(t, [2]string{parts[i].user, parts[i].selinux}, [2]string{user, selinux}, "%s/%s", w, c.Name)
		}
	}
	var rows []string
	for _, p := range parts {
		for _, key := range p.containers {
			require.True(t, found[key], "no manifest has %s", key)
		}
		rows = append(rows, fmt.Sprintf("| %s | %s | `%s` | %s |\n", p.name, p.user, p.selinux, p.why))
	}
	requireTable(t, "parts", "| container | runs as | SELinux type | why |", rows)
}

// hostMount documents a mount of the host in containers, which are separated by ", ".
type hostMount struct{ containers, path, mode, why string }

var hostMounts = []hostMount{
	{"toolkit", "/", "ro", "the driver, which runtime and distribution there is, the runtime's, NRI's and D-Bus' sockets"},
	{"toolkit", "/dev", "rw", "device nodes that are missing, links in `/dev/char`"},
	{"toolkit", "/run/cdi", "rw", "CDI specs; `/var/run` is a link to `/run`"},
	{"toolkit", "/run/nvidia/gpuready/toolkit", "rw", "its state, and the lock that keeps a second one out"},
	{"toolkit", "/usr/local/nvidia/gpuready", "rw", "`gpu-cdi-hook`, `gpu-oci-runtime`, the install manifest of all " +
		"changes, originals"},
	{"toolkit (runtime)", "/etc/containerd", "rw", "the runtime's configuration, where CDI is off or a handler is wanted"},
	{"uninstall", "/", "rw", "whatever the install manifest names, wherever it is"},
	{"device-plugin, device-plugin (privileged)", "/var/lib/kubelet/device-plugins", "rw", "the kubelet's socket, its " +
		"own beside it"},
	{"device-plugin, device-plugin (privileged)", "/run/nvidia/gpuready/deviceplugin", "rw", "its state, which outlives it"},
	{"device-plugin", "/run/nvidia/gpuready/toolkit", "ro", "whether what it allocates can be injected"},
	{"device-plugin", "/run/nvidia/gpuready/mps", "ro", "which GPUs the MPS control daemons serve"},
	{"dra-driver", "/var/lib/kubelet/plugins/gpu.nvidia.com", "rw", "its socket, and its record of prepared claims"},
	{"dra-driver", "/var/lib/kubelet/plugins_registry", "rw", "the socket by which the kubelet finds it"},
	{"dra-driver", "/var/lib/kubelet/pod-resources", "ro", "which devices pods hold"},
	{"dra-driver", "/run/nvidia/gpuready/dra-driver", "rw", "its state: which devices claims hold"},
	{"dra-driver", "/run/nvidia/gpuready/deviceplugin", "ro", "the GPUs and their health"},
	{"dra-driver", "/run/nvidia/gpuready/toolkit", "ro", "whether a device can be injected"},
	{"dra-driver", "/var/run/cdi", "ro", "the spec that has it"},
	{"mps-daemon", "/run/nvidia/gpuready/mps", "rw", "its state"},
	{"mps-daemon", "/run/cdi", "rw", "the CDI specification by which containers with claims find the control daemons"},
	{"mps-daemon", "/run/nvidia/mps", "rw", "the MPS control daemons' pipes, logs and shared memory, which containers " +
		"are given; a tmpfs is mounted in it for the host to see (Bidirectional)"},
	{"mps-uninstall", "/run", "rw", "the same tmpfs is unmounted for the host to see (Bidirectional)"},
	{"device-plugin", "/run/nvidia/gpuready/validator", "ro", "what the node's labels choose: its configuration, and who " +
		"offers the GPUs"},
	{"device-plugin", "/run/nvidia/gpuready/dra-driver", "ro", "which GPUs claims hold, where gpu-dra-driver has offered them"},
	{"validator, validator (privileged)", "/run/nvidia/validations", "rw", "the proofs"},
	{"validator, validator (privileged)", "/run/nvidia/gpuready/validator", "rw", "its state"},
	{"validator", "/run/nvidia/gpuready", "ro", "the states of the other agents"},
	{"device-plugin", "/var/lib/kubelet/pod-resources", "ro", "which pods hold which GPU"},
	{"validator", "/var/lib/kubelet/pod-resources", "ro", "what the kubelet offers, and to whom"},
	{"validator", "/var/run/cdi", "ro", "the specs that are proven"},
	{"validator", "/etc/cdi", "ro", "specs of others, which could make a name ambiguous"},
	{"device-plugin (privileged), validator (privileged), mps-daemon", "/", "ro", "the driver, wherever it is"},
	{"shadow", "/", "ro", "the driver, the kubelet's PodResources API and checkpoint"},
	{"driver, nvidia-driver-ctr", "/run/nvidia", "rw", "the driver root, mounted for the host to see (Bidirectional)"},
	{"nvidia-driver-ctr", "/run/nvidia-fabricmanager", "rw", "sockets of the fabric manager, for those who partition the " +
		"GPUs of a node"},
	{"nvidia-driver-ctr", "/lib/modules", "ro", "the kernel's own modules that the driver's depend on"},
	{"nvidia-driver-ctr", "/var/lib/gpuready/driver", "rw", "firmware, and modules that were built or pulled, for the " +
		"container that is started next"},
	{"host-driver", "/", "ro", "whether the host has a driver; it runs as nobody"},
}

// TestInstallPageListsHostMounts compares the table "What is mounted of the host" with the manifests.
func TestInstallPageListsHostMounts(t *testing.T) {
	var written, rows []string
	for _, m := range hostMounts {
		for who := range strings.SplitSeq(m.containers, ", ") {
			written = append(written, who+" "+m.path+" "+m.mode)
		}
		rows = append(rows, fmt.Sprintf("| %s | `%s` | %s | %s |\n", m.containers, m.path, m.mode, m.why))
	}
	var mounted []string
	for _, w := range workloads(t) {
		paths := map[string]string{}
		for _, v := range w.pod.Spec.Volumes {
			if v.HostPath != nil {
				paths[v.Name] = v.HostPath.Path
			}
		}
		for _, c := range w.containers() {
			for _, m := range c.VolumeMounts {
				path, is := paths[m.Name]
				if !is || c.Name == "wait" {
					continue // wait has fewer than the container that it delays
				}
				who, mode := containerKey(w, c), "rw"
				if m.ReadOnly {
					mode = "ro"
				}
				if strings.Contains(w.file, "runtime") && strings.HasPrefix(path, "/etc/") {
					who += " (runtime)"
				}
				mounted = append(mounted, who+" "+path+" "+mode)
			}
		}
	}
	slices.Sort(mounted)
	slices.Sort(written)
	require.Equal(t, slices.Compact(mounted), written)
	requireTable(t, "host mounts", "| container | path | mode | why |", rows)
}

// validatorRight documents verbs that the validator's token has, and what confines them.
type validatorRight struct{ verbs, resource, namespace, use, confined string }

var validatorRights = []validatorRight{
	{"get, watch", "nodes", "", "its labels, what it chooses by them, its runtime handlers", "not confined, as RBAC " +
		"knows no \"own\": Nodes can be read"},
	{"patch", "nodes/status", "", "the conditions `GPUReady` and `GPUHealthy`", "`gpuready-validator-own-node`: its own " +
		"Node, no other field, no other condition, a message of 1,024 characters"},
	{"patch", "nodes", "", "the startup taint, the labels that say what the GPUs are", "the same policy: its own Node; " +
		"taints are removed, and put back with `NoSchedule`, of the three keys that its policy names; of labels only " +
		"[those of GPUs' features](device-plugin.md), none by which something is chosen, and the annotation that names them"},
	{"create, patch", "events", "default", "Events about the Node", "`gpuready-validator-own-events`: about its " +
		"own Node, with names that begin with the Node's, by `gpu-validator`, with a message of 1,024 characters and " +
		"nothing beside. How many there are is not bounded"},
	{"create, get, watch, delete", "pods", "gpuready", "the pods that prove driver and device plugin",
		"`gpuready-validator-own-pods`: two names, on its own node, owned by the pod that the token was made for. " +
			"`gpuready-validator-pod-fields`: [every field](#what-the-validators-pods-may-be) that `gpu-validator` sets, " +
			"with its value, and no other. Reading is confined to the namespace"},
}

// TestInstallPageListsRightsOfTheValidator compares the table "What the validator's token allows" with the
// roles in the manifests.
func TestInstallPageListsRightsOfTheValidator(t *testing.T) {
	var written, rows []string
	for _, r := range validatorRights {
		in := ""
		if r.namespace != "" {
			in = " in `" + r.namespace + "`"
		}
		for verb := range strings.SplitSeq(r.verbs, ", ") {
			written = append(written, verb+" "+r.namespace+"/"+r.resource)
		}
		rows = append(rows, fmt.Sprintf("| %s %s%s | %s | %s |\n", r.verbs, r.resource, in, r.use, r.confined))
	}
	var granted []string
	for _, d := range documents(t) {
		if d.file != "gpuready.yaml" || d.kind != "Role" && d.kind != "ClusterRole" {
			continue
		}
		var role rbacv1.Role
		require.NoError(t, yaml.UnmarshalStrict(d.yaml, &role))
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					granted = append(granted, verb+" "+role.Namespace+"/"+resource)
				}
			}
		}
	}
	require.ElementsMatch(t, granted, written)
	requireTable(t, "rights of the validator", "| right | for | confined by |", rows)
}
