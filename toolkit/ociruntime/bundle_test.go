package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
)

const sample = `{
	"ociVersion": "9.9.9", "futureTop": {"a": 1e3},
	"process": {"args": ["sh"], "env": ["PATH=/bin"], "user": {"uid": 5, "umask": 18}, "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}, "futureProcess": true},
	"mounts": [{"destination": "/proc", "type": "proc", "source": "proc", "futureMount": "x"}],
	"annotations": {"a": "1", "A": "2"},
	"linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}], "futureResource": 7}, "seccomp": {"defaultAction": "x"},
		"namespaces": [{"type": "mount"}]}
}`

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o640))
	return path
}

func TestUnknownKeysAreKept(t *testing.T) {
	path := write(t, sample)
	c, err := readConfig(path)
	require.NoError(t, err)
	require.Equal(t, []string{"CAP_SYS_ADMIN"}, c.Spec.Process.Capabilities.Bounding)
	require.Equal(t, map[string]string{"a": "1", "A": "2"}, c.Spec.Annotations)
	require.Equal(t, oci.MountNamespace, c.Spec.Linux.Namespaces[0].Type)

	c.Spec.Mounts = append([]oci.Mount{{Destination: "/lib", Source: "/l"}}, c.Spec.Mounts...)
	c.Spec.Linux.Devices = []oci.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}}
	c.Spec.Linux.Resources.Devices = append(c.Spec.Linux.Resources.Devices, oci.LinuxDeviceCgroup{Allow: true, Type: "c"})
	c.Spec.Process.Env = append(c.Spec.Process.Env, "A=<b>")
	c.Spec.Hooks = &oci.Hooks{CreateContainer: []oci.Hook{{Path: "/hook"}}}
	require.NoError(t, c.Write())
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"ociVersion": "9.9.9", "futureTop": {"a": 1000},
		"process": {"args": ["sh"], "env": ["PATH=/bin", "A=<b>"], "user": {"uid": 5, "umask": 18}, "capabilities": {"bounding": ["CAP_SYS_ADMIN"]}, "futureProcess": true},
		"mounts": [{"destination": "/lib", "source": "/l"}, {"destination": "/proc", "type": "proc", "source": "proc", "futureMount": "x"}],
		"annotations": {"a": "1", "A": "2"},
		"linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}, {"allow": true, "type": "c"}], "futureResource": 7}, "seccomp": {"defaultAction": "x"},
			"namespaces": [{"type": "mount"}], "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0}]},
		"hooks": {"createContainer": [{"path": "/hook"}]}
	}`, string(data))
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestUnchangedConfigurationIsNotWritten(t *testing.T) {
	for _, content := range []string{sample, `{}`, `{"process":null,"linux":null,"hooks":null,"mounts":null}`, `{"linux":{"netDevices":{"eth0":{}},"intelRdt":{"closID":"x"}}}`} {
		path := write(t, content)
		before, err := os.Stat(path)
		require.NoError(t, err)
		c, err := readConfig(path)
		require.NoError(t, err, content)
		require.NoError(t, c.Write())
		after, err := os.Stat(path)
		require.NoError(t, err)
		require.True(t, os.SameFile(before, after), content)
	}
}

func TestHostileBundlesAreOneClearError(t *testing.T) {
	for content, want := range map[string]string{
		``:                                "is empty",
		`{"process":{"env":["A=b"`:        "ends too early",
		`[]`:                              "is no JSON object",
		`{} {}`:                           "after top-level value",
		`{"process":{},"process":{}}`:     `key "process" is set twice`,
		`{"Process":{"env":["A=b"]}}`:     `key "process" is written "Process"`,
		`{"process":{"env":[],"ENV":[]}}`: `process: key "env" is written "ENV"`,
		`{"linux":{"resources":{"devices":[],"devices":[]}}}`: `linux.resources: key "devices" is set twice`,
		`{"annotations":{"a":"1","a":"2"}}`:                   `annotations: key "a" is set twice`,
		`{"mounts":"x"}`:                                      "mounts: json: cannot unmarshal string",
		`{"process":{"env":[1]}}`:                             "process: json: cannot unmarshal number",
		strings.Repeat(`{"process":`, 100_000):                "exceeded max depth",
		"{\x00}":                                              "invalid character",
	} {
		path := write(t, content)
		_, err := readConfig(path)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), "\n")
	}
	path := write(t, sample)
	link := filepath.Join(t.TempDir(), "config.json")
	require.NoError(t, os.Symlink(path, link))
	_, err := readConfig(link)
	require.ErrorContains(t, err, link+" is a symbolic link")
	require.NoError(t, os.Truncate(path, maxBytes+1))
	_, err = readConfig(path)
	require.ErrorContains(t, err, "more than")
	require.NoError(t, os.Remove(path))
	_, err = readConfig(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err = readConfig(path)
	require.ErrorContains(t, err, "no regular file")
}

func TestFailedWriteLeavesTheFileUnchanged(t *testing.T) {
	path := write(t, sample)
	c, err := readConfig(path)
	require.NoError(t, err)
	c.Spec.Process.Env = nil
	c.path = filepath.Join(filepath.Dir(path), "gone", "config.json")
	require.ErrorContains(t, c.Write(), "gone")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, sample, string(data))
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte(`{"process":{"user":{"additionalGids":[1]}},"hooks":{"prestart":[{"path":"/x"}]},"linux":{"devices":[{}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decode(data)
		if err != nil {
			return
		}
		if changed, err := c.merge(); changed || err != nil {
			t.Fatalf("%q is changed by reading it: %v\n%s", data, err, c.top.encode())
		}
		c.Spec.Mounts = append(c.Spec.Mounts, oci.Mount{Destination: "/added"})
		if _, err := c.merge(); err != nil {
			t.Fatal(err)
		}
		encoded := c.top.encode()
		again, err := decode(encoded)
		if err != nil || !json.Valid(encoded) || len(again.Spec.Mounts) != len(c.Spec.Mounts) {
			t.Fatalf("%q: %q: %v", data, encoded, err)
		}
	})
}
