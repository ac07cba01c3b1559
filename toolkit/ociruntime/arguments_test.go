package arguments

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args string
		want Call
	}{
		// As containerd, CRI-O with conmon, dockerd and Podman call.
		{"--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json --systemd-cgroup create --bundle /b --pid-file /b/init.pid ID",
			Call{"create", "/b/config.json", "/b/log.json", "json"}},
		{"--root=/x --log=/l --log-format=json create --bundle=/b --console-socket=/s ID", Call{"create", "/b/config.json", "/l", "json"}},
		{"--systemd-cgroup --root=/run/runc create --bundle /b --pid-file /p ID", Call{"create", "/b/config.json", "", ""}},
		{"--log-level debug --cgroup-manager disabled create -b /b ID", Call{"create", "/b/config.json", "", ""}},
		{"create -b=/b ID", Call{"create", "/b/config.json", "", ""}},
		{"create -b/b ID", Call{"create", "/b/config.json", "", ""}},
		{"create --console-socket --bundle --bundle /b ID", Call{"create", "/b/config.json", "", ""}},
		{"create --pid-file --bundle ID", Call{"create", "config.json", "", ""}},
		{"-root create run --detach --bundle B ID", Call{"run", "B/config.json", "", ""}},
		{"-l /log -r /root create ID", Call{"create", "config.json", "/log", ""}},
		{"create ID", Call{"create", "config.json", "", ""}},
		{"create --no-pivot --preserve-fds 3 --bundle /b ID", Call{"create", "/b/config.json", "", ""}},
		{"create --bundle /a --bundle /b ID", Call{"create", "/b/config.json", "", ""}},
		{"create -f /other.json -b /b ID", Call{"create", "/other.json", "", ""}},
		{"--log file:/l create ID", Call{"create", "config.json", "/l", ""}},
		{"--log journald:x create ID", Call{"create", "config.json", "", ""}},
		{"--new-flag value --log /l create --bundle /b ID", Call{"create", "/b/config.json", "/l", ""}},
		{"--new-switch create --bundle /b ID", Call{"create", "/b/config.json", "", ""}},
		{"--debug create --bundle /b ID", Call{"create", "/b/config.json", "", ""}},
		{"--root create state ID", Call{"state", "", "", ""}},
		{"create --help", Call{"create", "", "", ""}},
		{"--log /l --log-format json delete --force create", Call{"delete", "", "/l", "json"}},
		{"kill create 9", Call{"kill", "", "", ""}},
		{"exec ID create --bundle /b", Call{"exec", "", "", ""}},
		{"--version", Call{}},
		{"--root", Call{}},
		{"", Call{}},
	} {
		require.Equal(t, c.want, Parse(strings.Fields(c.args)), c.args)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("--root /r --log=/l create --bundle /b -- ID")
	f.Add("- -- --= -=x -b")
	f.Fuzz(func(t *testing.T, line string) {
		call := Parse(strings.Fields(line))
		if call.Creates() && call.Command != "create" && call.Command != "run" {
			t.Fatalf("%q creates by %q", line, call.Command)
		}
	})
}
