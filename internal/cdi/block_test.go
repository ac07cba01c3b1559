package cdi

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/specs-go"
)

func TestEncodedSpecsAreParsedAsBlocks(t *testing.T) {
	s := spec(KindNVIDIA, specs.ContainerEdits{
		Env: []string{"A=b c", "EMPTY="},
		Mounts: []*specs.Mount{
			{HostPath: "/lib/libcuda.so.580.95.05", ContainerPath: "/lib/libcuda.so.580.95.05", Options: []string{"ro", "nosuid"}},
		},
		Hooks: []*specs.Hook{{HookName: "createContainer", Path: "/hook", Args: []string{"hook", "--link", "libcuda.so.1::/lib/libcuda.so"}}},
	}, "GPU-00000000-0000-4000-8000-000000000000", "0", "0:1", "all")
	data, err := Encode(s)
	require.NoError(t, err)
	short := parseBlock(data)
	require.NotNil(t, short, string(data))
	long, err := cdi.ParseSpec(data)
	require.NoError(t, err)
	require.Equal(t, long, short)

	files, err := filepath.Glob("../../toolkit/spec/testdata/*.yaml")
	require.NoError(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		require.NoError(t, err)
		agrees(t, data)
	}
}

func TestOtherYAMLIsLeftToTheParser(t *testing.T) {
	const head = "cdiVersion: 0.3.0\nkind: a.b/c\ndevices:\n- name: x\n  containerEdits:\n"
	for _, text := range []string{
		head + "    env: [A=b]\n",
		head + "    env:\n    - &a A=b\n",
		head + "    env:\n    - \"A=\\x41\"\n",
		head + "    env:\n    - A=b # comment\n",
		head + "    env:\n    - |\n      A=b\n",
		head + "    env:\n    - yes\n",
		head + "    env:\n    - A=b\n      c\n",
		head + "    env:\n    - A=b\n    env:\n    - A=c\n",
		head + "    Env:\n    - A=b\n",
		head + "    env:\n    - A=b\n   hooks: x\n",
		head + "    deviceNodes:\n    - path: /dev/x\n      fileMode: 0600\n",
		head + "    deviceNodes:\n    - path: /dev/x\n      major: 1.5\n",
		head + "    env: - A=b\n",
		head + "    deviceNodes:\n    - path: /dev/x\n      uid: 4294967296\n",
		head + "    deviceNodes:\n    - path: 7\n",
		head + "    hooks:\n    - args: path: /x\n",
		strings.Replace(head, "  containerEdits:", "  containerEdits: env: x", 1),
		"--- \n" + head, "---\n---\n" + head, head + "...\n", "\n" + head,
		"", "---", "- a", "cdiVersion: 0.3.0\nkind:\n",
	} {
		require.Nil(t, parseBlock([]byte(text)), text)
	}
}

// agrees checks that parseBlock and the YAML parser return the same.
func agrees(t *testing.T, data []byte) {
	t.Helper()
	short := parseBlock(data)
	if short == nil {
		return
	}
	long, err := cdi.ParseSpec(data)
	if err != nil {
		t.Fatalf("%q is refused: %v; and read as %+v", data, err, short)
	}
	require.Equal(t, long, short, string(data))
}

func FuzzBlock(f *testing.F) {
	data, err := Encode(spec(KindGPU, specs.ContainerEdits{Env: []string{"A=b"}, Hooks: []*specs.Hook{{HookName: "createContainer", Path: "/h", Args: []string{"h", "--link", "a::b"}}}}, "GPU-1", "0"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("---\nkind: 'a.b/c'\ncdiVersion: \"0.3.0\"\ndevices:\n  - name: x\n    containerEdits:\n        env:\n        - A= b\n"))
	f.Add([]byte("devices:\n- - name: x\n"))
	f.Add([]byte("cdiVersion: 0.5.0\ndevices:\n- containerEdits:\n    deviceNodes:\n    - path: /dev/x\n      major: 195\n      fileMode: 438\n      uid: 0\n      gid: 4294967295\n    hooks:\n    - timeout: 5\n      env:\n      - \"A=b\"\n    mounts:\n    - options:\n      - ro\n      type:\n        bind\n"))
	f.Add([]byte("devices:\n- name: 1e3\n- name: -1\n- name: 0x1\n"))
	f.Fuzz(agrees)
}
