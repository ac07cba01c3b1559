package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args string
		want call
	}{
		// As containerd, CRI-O with conmon, dockerd and Podman call.
		{"--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json --systemd-cgroup create --bundle /b --pid-file /b/init.pid ID",
			call{"create", "/b/config.json", "/b/log.json", "json"}},
		{"--root=/x --log=/l --log-format=json create --bundle=/b --console-socket=/s ID", call{"create", "/b/config.json", "/l", "json"}},
		{"--systemd-cgroup --root=/run/runc create --bundle /b --pid-file /p ID", call{"create", "/b/config.json", "", ""}},
		{"--log-level debug --cgroup-manager disabled create -b /b ID", call{"create", "/b/config.json", "", ""}},
		{"create -b=/b ID", call{"create", "/b/config.json", "", ""}},
		{"create -b/b ID", call{"create", "/b/config.json", "", ""}},
		{"create --console-socket --bundle --bundle /b ID", call{"create", "/b/config.json", "", ""}},
		{"create --pid-file --bundle ID", call{"create", "config.json", "", ""}},
		{"-root create run --detach --bundle B ID", call{"run", "B/config.json", "", ""}},
		{"-l /log -r /root create ID", call{"create", "config.json", "/log", ""}},
		{"create ID", call{"create", "config.json", "", ""}},
		{"create --no-pivot --preserve-fds 3 --bundle /b ID", call{"create", "/b/config.json", "", ""}},
		{"create --bundle /a --bundle /b ID", call{"create", "/b/config.json", "", ""}},
		{"create -f /other.json -b /b ID", call{"create", "/other.json", "", ""}},
		{"--log file:/l create ID", call{"create", "config.json", "/l", ""}},
		{"--log journald:x create ID", call{"create", "config.json", "", ""}},
		{"--new-flag value --log /l create --bundle /b ID", call{"create", "/b/config.json", "/l", ""}},
		{"--new-switch create --bundle /b ID", call{"create", "/b/config.json", "", ""}},
		{"--debug create --bundle /b ID", call{"create", "/b/config.json", "", ""}},
		{"--root create state ID", call{"state", "", "", ""}},
		{"create --help", call{"create", "", "", ""}},
		{"--log /l --log-format json delete --force create", call{"delete", "", "/l", "json"}},
		{"kill create 9", call{"kill", "", "", ""}},
		{"exec ID create --bundle /b", call{"exec", "", "", ""}},
		{"--version", call{}},
		{"--root", call{}},
		{"", call{}},
	} {
		require.Equal(t, c.want, parseCall(strings.Fields(c.args)), c.args)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("--root /r --log=/l create --bundle /b -- ID")
	f.Add("- -- --= -=x -b")
	f.Fuzz(func(t *testing.T, line string) {
		call := parseCall(strings.Fields(line))
		if call.Creates() && call.Command != "create" && call.Command != "run" {
			t.Fatalf("%q creates by %q", line, call.Command)
		}
	})
}
