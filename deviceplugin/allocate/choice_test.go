package allocate

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/nodestate"
)

// nodeWith returns the Naming of a node whose toolkit describes its runtime and handler.
func nodeWith(r nodestate.Runtime, handler string, accepts ...string) Naming {
	return NamingFrom(nodestate.State{Phase: nodestate.Ready, Toolkit: &nodestate.ToolkitInfo{
		Specs:   []nodestate.Spec{{Kind: "k8s.gpuready.io/gpu", Path: "/cdi.json", Devices: []string{"a"}}},
		Runtime: &r, Handler: handler, HandlerAccepts: accepts,
	}}, nil)
}

var (
	on, off = true, false

	noToolkit   = NamingFrom(nodestate.State{}, nodestate.ErrStale)
	containerd2 = nodeWith(nodestate.Runtime{Name: "containerd", CDI: &on, Handlers: []string{"runc"}, GPUHandlers: []string{}, DefaultHandler: "runc"}, "")
	crio        = nodeWith(nodestate.Runtime{Name: "cri-o", Handlers: []string{"crun"}, GPUHandlers: []string{}, DefaultHandler: "crun"}, "")
	withoutCDI  = nodeWith(nodestate.Runtime{Name: "containerd", CDI: &off, Message: "CDI is off", Handlers: []string{"runc"}, GPUHandlers: []string{}, DefaultHandler: "runc"}, "")
	ourHandler  = nodeWith(nodestate.Runtime{Name: "containerd", CDI: &off, Message: "no CDI", Handlers: []string{"nvidia", "runc"}, GPUHandlers: []string{"nvidia"}, DefaultHandler: "nvidia"}, "nvidia", "volume-mounts")
	theirs      = nodeWith(nodestate.Runtime{Name: "containerd", CDI: &off, Message: "CDI is off", Handlers: []string{"nvidia", "runc"}, GPUHandlers: []string{"nvidia"}, DefaultHandler: "nvidia"}, "")
	byClass     = nodeWith(nodestate.Runtime{Name: "containerd", CDI: &off, Message: "CDI is off", Handlers: []string{"nvidia", "runc"}, GPUHandlers: []string{"nvidia"}, DefaultHandler: "runc"}, "")
	both        = nodeWith(nodestate.Runtime{Name: "containerd", CDI: &on, Handlers: []string{"nvidia", "runc"}, GPUHandlers: []string{"nvidia"}, DefaultHandler: "nvidia"}, "nvidia", "volume-mounts")
	older       = nodeWith(nodestate.Runtime{Name: "containerd", CDI: &on, Handlers: []string{"runc"}}, "") // a toolkit that does not report GPUHandlers
	ownName     = nodeWith(nodestate.Runtime{Name: "cri-o", Handlers: []string{"crun", "gpu"}, GPUHandlers: []string{}, DefaultHandler: "gpu"}, "gpu", "envvar")
)

func TestContainersGetTheirGPUsByTheBestServedWay(t *testing.T) {
	for _, c := range []struct {
		name       string
		node       Naming
		configured string
		want       string // strategies in use
		unserved   string // of each other one: a part of the message
		problem    string
	}{
		{"all of them, on a node with native CDI", containerd2, "cdi-cri,cdi-annotations,volume-mounts", "cdi-cri,cdi-annotations", "volume-mounts: no handler that gives GPUs by mounts; cdi-cri, cdi-annotations is used: nothing has to be done", ""},
		{"in another order", containerd2, "envvar,volume-mounts,cdi-annotations,cdi-cri", "cdi-annotations,cdi-cri", "envvar: no handler|volume-mounts: no handler", ""},
		{"the reference's default", containerd2, "envvar", "cdi-cri,cdi-annotations", "envvar: no handler that gives GPUs by NVIDIA_VISIBLE_DEVICES; cdi-cri, cdi-annotations is used instead: write that", ""},
		{"volume-mounts alone", containerd2, "volume-mounts", "cdi-cri,cdi-annotations", "volume-mounts: no handler", ""},
		{"CRI-O, which has no switch for CDI", crio, "volume-mounts,envvar", "cdi-cri,cdi-annotations", "volume-mounts: no handler|envvar: no handler", ""},
		{"CDI alone", containerd2, "cdi-cri", "cdi-cri", "", ""},
		{"annotations alone", containerd2, "cdi-annotations", "cdi-annotations", "", ""},

		{"all of them, with the handler alone", ourHandler, "cdi-cri,cdi-annotations,volume-mounts", "volume-mounts", "cdi-cri: no CDI; volume-mounts is used|cdi-annotations: no CDI", ""},
		{"CDI alone, with the handler alone", ourHandler, "cdi-cri", "volume-mounts", "cdi-cri: no CDI; volume-mounts is used instead", ""},
		{"a variable that our handler does not accept", ourHandler, "envvar", "volume-mounts", "envvar: the handler nvidia does not accept requests by NVIDIA_VISIBLE_DEVICES; volume-mounts is used instead", ""},
		{"mounts are better than variables", theirs, "envvar,volume-mounts", "volume-mounts", "envvar: not needed", ""},
		{"what another handler accepts is not known", theirs, "envvar", "envvar", "", ""},
		{"a handler with a name of its own", ownName, "volume-mounts,envvar", "envvar", "volume-mounts: the handler gpu does not accept requests by mounts", ""},
		{"a handler that is not the default", byClass, "envvar", "envvar", "envvar: only pods of a RuntimeClass with the handler nvidia get their GPUs", ""},
		{"CDI and the handler", both, "volume-mounts,cdi-cri", "cdi-cri", "volume-mounts: not needed: containers get their GPUs by cdi-cri, and would get them twice", ""},
		{"the handler, where there is CDI too", both, "volume-mounts", "volume-mounts", "", ""},

		{"nothing at all", withoutCDI, "volume-mounts", "volume-mounts", "", "volume-mounts: the container runtime has no handler that gives GPUs by mounts; cdi-cri: CDI is off"},
		{"nothing at all, for several", withoutCDI, "cdi-cri,envvar", "cdi-cri,envvar", "", "cdi-cri: CDI is off; envvar: the container runtime has no handler"},

		{"nothing is known", noToolkit, "volume-mounts", "volume-mounts", "", ""},
		{"nothing is known, for several", noToolkit, "cdi-cri,cdi-annotations,volume-mounts", "cdi-cri,cdi-annotations,volume-mounts", "", ""},
		{"an older toolkit", older, "volume-mounts", "volume-mounts", "", ""},
		{"an older toolkit, for several", older, "volume-mounts,cdi-cri", "cdi-cri", "volume-mounts: not needed", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := config.PluginFlags{DeviceListStrategy: strings.Split(c.configured, ",")}
			got := c.node.Choose(p)
			require.Equal(t, strings.Split(c.want, ","), got.Strategies)
			if c.problem == "" {
				require.Empty(t, got.Problem)
			}
			require.Contains(t, got.Problem, c.problem)
			var want []string
			if c.unserved != "" {
				want = strings.Split(c.unserved, "|")
			}
			require.Len(t, got.Remarks, len(want), "%v", got.Remarks)
			for i, w := range want {
				strategy, message, _ := strings.Cut(w, ": ")
				require.Equal(t, "deviceListStrategy="+strategy, got.Remarks[i].Name)
				require.Contains(t, got.Remarks[i].Message, message)
			}
		})
	}
}

// Only NVIDIA's container runtime reads annotations with another prefix.
func TestAnnotationsOfAnotherPrefixAreNotReadByRuntimes(t *testing.T) {
	p := config.PluginFlags{DeviceListStrategy: []string{config.ListVariable, config.ListAnnotations}, CDIAnnotationPrefix: new("nvidia.cdi.k8s.io/")}
	c := containerd2.Choose(p)
	require.Equal(t, []string{config.ListCDI, config.ListAnnotations}, c.Strategies)
	require.Contains(t, c.Remarks[1].Message, "only NVIDIA's container runtime reads annotations that begin with nvidia.cdi.k8s.io/")
	inForce := c.Config(&config.Config{Flags: config.Flags{Plugin: p}})
	require.Nil(t, inForce.Flags.Plugin.CDIAnnotationPrefix)
	require.Equal(t, []string{config.ListVariable}, theirs.Choose(p).Strategies)
	p.DeviceListStrategy = []string{config.ListAnnotations}
	require.Equal(t, []string{config.ListAnnotations}, theirs.Choose(p).Strategies)
}

// A container never gets its GPUs twice where the node is known, and never silently none.
func TestAnyListIsServedOnceOrHasAReason(t *testing.T) {
	nodes := []Naming{containerd2, crio, withoutCDI, ourHandler, theirs, byClass, both, ownName}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom(nodes).Draw(t, "node")
		all := []string{config.ListCDI, config.ListAnnotations, config.ListVariable, config.ListMounts}
		list := rapid.Permutation(all).Draw(t, "list")[:rapid.IntRange(1, 4).Draw(t, "length")]
		c := n.Choose(config.PluginFlags{DeviceListStrategy: list})
		if c.Problem != "" {
			return
		}
		require.NotEmpty(t, c.Strategies)
		used := map[int]bool{}
		for _, s := range c.Strategies {
			can, why := n.supports(s, config.PluginFlags{})
			require.Equal(t, served, can, "%s: %s", s, why)
			for i, way := range ways {
				if way[0] == s || way[len(way)-1] == s {
					used[i] = true
				}
			}
		}
		require.Len(t, used, 1, "%v", c.Strategies)
		for _, s := range list {
			unused := false
			for _, u := range c.Remarks {
				unused = unused || u.Name == "deviceListStrategy="+s
			}
			inUse := strings.Contains(strings.Join(c.Strategies, ","), s)
			require.True(t, inUse || unused, "%s is neither used nor explained: %v", s, c)
		}
	})
}
