package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	program := func(name string, mode os.FileMode) string {
		require.NoError(t, os.MkdirAll(dir+"/a", 0o755))
		require.NoError(t, os.MkdirAll(dir+"/b", 0o755))
		require.NoError(t, os.WriteFile(dir+"/"+name, nil, mode))
		return dir + "/" + name
	}
	self := program("self", 0o755)
	require.NoError(t, os.MkdirAll(dir+"/b", 0o755))
	require.NoError(t, os.Symlink(self, dir+"/a/runc"))
	require.NoError(t, os.Link(self, dir+"/b/runc"))
	require.NoError(t, os.MkdirAll(dir+"/a/youki", 0o755))
	program("a/crun", 0o644)
	crun := program("b/crun", 0o755)
	info, err := os.Stat(self)
	require.NoError(t, err)

	find := func(pathList string, dirs []string, runtimes ...string) string {
		got, err := findRuntime(runtimes, pathList, dirs, info)
		if err != nil {
			return err.Error()
		}
		return got
	}
	both := dir + "/a:" + dir + "/b"
	require.Equal(t, crun, find(both, nil, "runc", "crun"), "we are never our own runtime, nor is what cannot be run")
	require.Equal(t, crun, find("", []string{dir + "/b"}, "crun"))
	require.Equal(t, crun, find("", nil, "/nowhere/runc", crun))
	require.Contains(t, find(both, nil, "runc", "youki"), "none of runc, youki")
	t.Chdir(dir + "/b")
	require.Contains(t, find(".::", nil, "crun"), "no low-level runtime")
}
