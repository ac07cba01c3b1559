package namespace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const hybrid = `24 23 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=4k
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset,clone_children
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
99 31 0:31 / /mnt/cpuset rw,relatime - cgroup cgroup rw,cpuset
`

func TestHierarchiesAreFoundOnce(t *testing.T) {
	for name, test := range map[string]struct {
		mountinfo string
		want      []Hierarchy
	}{
		"v2": {"35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
			[]Hierarchy{{Mount: "/sys/fs/cgroup"}}},
		"hybrid": {hybrid, []Hierarchy{
			{"/sys/fs/cgroup/cpu,cpuacct", "cpu,cpuacct"}, {"/sys/fs/cgroup/cpuset", "cpuset"},
			{"/sys/fs/cgroup/systemd", "none,name=systemd"}, {"/sys/fs/cgroup/unified", ""},
		}},
		"none":    {"24 23 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw,size=4k\n", nil},
		"garbage": {"- cgroup\n\n a b c d e f - cgroup2\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseHierarchies(strings.NewReader(test.mountinfo))
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}
}

func TestGroupsOfV2GetEveryController(t *testing.T) {
	top := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(top, "cgroup.controllers"), []byte("cpu\n"), 0o644))
	dirs, err := MakeGroups([]Hierarchy{{Mount: top}}, "node")
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(top, "node")}, dirs)
	enabled, err := os.ReadFile(filepath.Join(top, "cgroup.subtree_control"))
	if err == nil { // a real hierarchy has the file; this folder has not
		require.Equal(t, "+cpu", string(enabled))
	}
}

func TestGroupsAreRemovedWithAllBelowThem(t *testing.T) {
	top := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(top, "node/kubepods/pod1/container"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(top, "node2"), 0o755))
	hierarchies := []Hierarchy{{Mount: top, Data: "cpu"}}
	require.NoError(t, RemoveGroups(hierarchies, "node"))
	require.NoDirExists(t, filepath.Join(top, "node"))
	require.Equal(t, []string{"node2"}, FindGroups(hierarchies, "node"))
	require.NoError(t, RemoveGroups(hierarchies, "node"), "what is gone may be removed again")
}

func FuzzParse(f *testing.F) {
	f.Add(hybrid)
	f.Fuzz(func(t *testing.T, text string) {
		found, err := ParseHierarchies(strings.NewReader(text))
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, h := range found {
			require.False(t, seen[h.Data], "twice: %q", h.Data)
			seen[h.Data] = true
		}
	})
}
