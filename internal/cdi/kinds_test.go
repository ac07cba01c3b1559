package cdi

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/specs-go"
)

func TestLoadKindsReadsFilesThatCanDefineThem(t *testing.T) {
	dir, root := view(t)
	put(t, dir, "etc/cdi/a.yaml", spec(KindNVIDIA, specs.ContainerEdits{}, "0"))
	put(t, dir, "etc/cdi/b.yaml", spec(KindGPU, specs.ContainerEdits{}, "GPU-1"))
	put(t, dir, "var/run/cdi/c.yaml", spec(KindManagement, specs.ContainerEdits{}, All))
	write := func(name, text string) { require.NoError(t, os.WriteFile(dir+"/etc/cdi/"+name, []byte(text), 0o644)) }
	write("broken.yaml", "cdiVersion: 99.0.0\nkind: nvidia.com/gpu\n")
	write("other.yaml", "broken: [")
	write("escaped.json", `{"cdiVersion":"0.3.0","kind":"nvidia.com\/gpu","devices":[{"name":"esc","containerEdits":{"env":["A=b"]}}]}`)
	files, err := LoadKinds(root, []string{KindNVIDIA})
	require.NoError(t, err)
	var paths []string
	for _, f := range files {
		paths = append(paths, f.Path)
	}
	require.Equal(t, []string{"/etc/cdi/a.yaml", "/etc/cdi/broken.yaml", "/etc/cdi/escaped.json"}, paths)

	all, err := Load(root)
	require.NoError(t, err)
	for _, name := range []string{"nvidia.com/gpu=0", "nvidia.com/gpu=esc", "nvidia.com/gpu=9"} {
		want, _, wantErr := Find(all, name)
		got, _, err := Find(files, name)
		require.Equal(t, wantErr, err)
		require.Equal(t, want, got, "all files together give the same answer")
	}
}
